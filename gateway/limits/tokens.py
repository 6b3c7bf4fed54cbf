"""The tokens of queries: when they are charged, and what is reserved for running ones."""

from collections import Counter
from collections.abc import Callable

from gateway.stores.windows import Windows
from gateway.tasks import BackgroundTasks


class TokenMeter:
    """Counts a query's tokens and passes them to ``charge``: a prompt's at its hand-over, all others at the end.

    A client that leaves before the first token has thus paid for its prompt. All attempts at an answer count as one
    prompt, the longest: guesses and retries are the stack's own choice or fault. With ``prompt_paid``, the prompt is
    another query's, whose KV this one finds.
    """

    def __init__(self, charge: Callable[[int], None], *, prompt_paid: bool) -> None:
        self._charge = charge
        self._prompt_paid = prompt_paid
        self._prompt = self._rewriting = 0
        self._generated = 0
        self._charged = 0

    def began(self, prompt_tokens: int) -> None:
        """Charge for the prompt of an attempt, which is handed to the engine now."""
        if not self._prompt_paid:
            self._prompt = max(self._prompt, prompt_tokens)
            self._charge_rest(self._prompt + self._rewriting)

    def began_rewriting(self, prompt_tokens: int) -> None:
        """Charge for the prompt that has the question rewritten, which is handed to the engine now."""
        self._rewriting = prompt_tokens
        self._charge_rest(self._rewriting)

    def generated(self, tokens: int) -> None:
        """Count tokens of the answer, or of a rewriting."""
        self._generated += tokens

    def ended(self) -> None:
        """Charge for what has not been charged yet."""
        self._charge_rest(self._prompt + self._rewriting + self._generated)

    def _charge_rest(self, tokens: int) -> None:
        if tokens > self._charged:
            self._charge(tokens - self._charged)
            self._charged = tokens


_WEIGHT = 0.2
"""Weight of the newest query in the moving average."""
_FIRST_SHARE = 4
"""Until a key's first query has ended, each is expected to use a quarter of the quota."""


class TokenReservations:
    """Tokens reserved for running queries, so that a burst of queries is not admitted on the same free tokens.

    A query is expected to use the moving average of the key's past queries. Each gateway reserves on its own, for the
    keys with token quotas.
    """

    def __init__(self) -> None:
        self._reserved = Counter[str]()
        self._typical: dict[str, float] = {}

    def of(self, owner: str) -> int:
        """Tokens reserved for the key's running queries."""
        return self._reserved[owner]

    def reserve(self, owner: str, limit: int) -> int:
        """Reserve a query's expected tokens. Returns their number."""
        expected = round(self._typical.get(owner, limit / _FIRST_SHARE))
        self._reserved[owner] += expected
        return expected

    def release(self, owner: str, tokens: int) -> None:
        """Release reserved tokens: they are not used, or they are counted now."""
        self._reserved[owner] -= tokens

    def learn(self, owner: str, used: int) -> None:
        """Update the moving average with a query's tokens."""
        typical = self._typical.get(owner, used)
        self._typical[owner] = typical + _WEIGHT * (used - typical)


class TokenAccount:
    """Charges one query's tokens to its key's window, the first of them against what ``reservations`` hold for it."""

    def __init__(
        self, owner: str, limit: int, reservations: TokenReservations, windows: Windows, tasks: BackgroundTasks
    ) -> None:
        self._owner = owner
        self._reservations = reservations
        self._windows = windows
        self._tasks = tasks
        self._left = reservations.reserve(owner, limit)
        self._used = 0

    def charge(self, tokens: int) -> None:
        """Count tokens in the background: also those of a request whose client has left."""
        covered = min(self._left, tokens)
        self._left -= covered
        self._used += tokens
        self._tasks.start(self._count(tokens, covered))

    def end(self) -> None:
        """Release what the query has not used, and learn from what it has."""
        self._reservations.release(self._owner, self._left)
        self._left = 0
        if self._used:
            self._reservations.learn(self._owner, self._used)

    async def _count(self, tokens: int, covered: int) -> None:
        try:
            await self._windows.charge(f"{self._owner}/tokens", tokens)
        finally:
            self._reservations.release(self._owner, covered)
