"""How much is under way at once: by caller, and all together."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded, RateLimited


class Concurrency:
    """Places for one kind of work, named by ``what``: at most ``most`` of all callers, in the memory of one gateway."""

    def __init__(self, what: str, most: int | None = None) -> None:
        self._what = what
        self._most = most
        self._held = Counter[str]()

    def __len__(self) -> int:
        return self._held.total()

    @contextmanager
    def place(self, owner: str = "", most: int | None = None) -> Iterator[None]:
        """A place for as long as the block runs.

        Raises RateLimited where the owner has ``most`` already, and Overloaded where all are taken.
        """
        if most is not None and self._held[owner] >= most:
            raise RateLimited(f"This key has {most:,} {self._what} under way already, as many as it may.")
        if self._most is not None and len(self) >= self._most:
            raise Overloaded(f"{self._most:,} {self._what} are under way already; try again later.")
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
