"""The past of paths and of their documents, within bounds, and examples of it to learn from."""

from __future__ import annotations

from collections import OrderedDict
from math import log2
from random import Random
from typing import NamedTuple

from mypy_extensions import i32

HALF_LIVES = (64.0, 1024.0, 16384.0)
"""Requests in which a decayed count halves. A fixed geometric grid; the model's weights choose among them."""

BANDS = ("first", "second", "third and fourth", "deeper")
"""Bands of a document's position on its path."""
CLASSES = ("1", "2", "3", "4-5", "6-9", "10-19", "20-49", "50 and more")
"""Uses of a path, in classes."""

_BANDS = (0, 1, 2, 2, 3)
_CLASS_OF = bytes([0, 0, 1, 2, 3, 3, *[4] * 4, *[5] * 10, *[6] * 30, 7])


def counted(decayed: float, age: float, half_life: float) -> float:
    """log2 of a decayed count of uses with one more use now; ``decayed`` is its log2 ``age`` requests ago."""
    left = decayed - age / half_life
    return log2(1.0 + 2.0**left) if left > -30 else 0.0


class Popularity:
    """How often a document is used on all paths: log2 of its decayed count as of request ``last``."""

    __slots__ = ("count", "last", "paths")

    def __init__(self) -> None:
        self.count = 0.0
        self.last = 0
        self.paths = 0


class History:
    """A path's past: its uses, and log2 of its count decayed by each of ``HALF_LIVES``, as of its last use.

    ``band`` is the band of its depth, and ``row`` numbers its band and its class of uses. ``last_in_request`` says
    whether it was the end of its latest request, ``resident`` whether the tree has it. ``example`` is the example whose
    outcome is open. ``at`` is its index in the table of ``Histories``.
    """

    __slots__ = (
        "at",
        "band",
        "content",
        "decayed",
        "document",
        "example",
        "key",
        "last",
        "last_in_request",
        "resident",
        "row",
        "uses",
    )

    def __init__(self, key: bytes, depth: int, content: str, document: Popularity) -> None:
        self.key = key
        self.content = content
        self.document = document
        self.resident = False
        self.last_in_request = False
        self.band: i32 = _BANDS[min(depth, 4)]
        self.row: i32 = self.band * len(CLASSES)
        self.at: i32 = 0
        self.uses = 0
        self.last = 0
        self.decayed = (0.0, 0.0, 0.0)
        self.example: Example | None = None

    def use(self, tick: int) -> None:
        """Count a use of the path, and of its document."""
        if self.uses:
            age = tick - self.last
            short, middle, long = self.decayed
            self.decayed = (
                counted(short, age, HALF_LIVES[0]),
                counted(middle, age, HALF_LIVES[1]),
                counted(long, age, HALF_LIVES[2]),
            )
        self.uses += 1
        self.last = tick
        self.row = self.band * len(CLASSES) + _CLASS_OF[min(self.uses, 50)]
        document = self.document
        document.count = counted(document.count, tick - document.last, HALF_LIVES[2]) if document.last else 0.0
        document.last = tick

    def recall(self, uses: int, last: int) -> None:
        """Take over uses that a former controller counted. Of their times only the last is known."""
        self.uses = uses
        self.last = last
        self.row = self.band * len(CLASSES) + _CLASS_OF[min(uses, 50)]


class Example(NamedTuple):
    """What a path looked like at request ``tick``. The model learns from it once its outcome is known."""

    tick: int
    history: History
    features: tuple[float, ...]
    cell: int


_GHOSTS = 2
_FEWEST = 500


class Histories:
    """The histories of all resident paths, and of up to twice as many ghosts: paths used or evicted lately."""

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._by_key: dict[bytes, History] = {}
        # For random draws. A history knows its index here.
        self._table: list[History] = []
        # Histories of paths that the tree does not have, by last use or eviction, oldest first.
        self._ghosts: OrderedDict[History, None] = OrderedDict()
        self._documents: dict[str, Popularity] = {}

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: bytes) -> History | None:
        """A path's history, if there is one."""
        return self._by_key.get(key)

    def of(self, key: bytes, depth: int, content: str) -> History:
        """A path's history, now the youngest, or a new one. ``depth`` counts the documents above the path's end."""
        history = self._by_key.get(key)
        if history is None:
            document = self._documents.get(content)
            if document is None:
                document = self._documents[content] = Popularity()
            document.paths += 1
            history = self._by_key[key] = History(key, depth, content, document)
            history.at = len(self._table)
            self._table.append(history)
            self._ghosts[history] = None
        elif not history.resident:
            self._ghosts.move_to_end(history)
        return history

    def drawn(self) -> History | None:
        """A history drawn at random, each with the same probability."""
        return self._table[int(self._random() * len(self._table))] if self._table else None

    def set_resident(self, history: History, resident: bool) -> None:
        """Record whether the tree has the path."""
        history.resident = resident
        if resident:
            del self._ghosts[history]
        else:
            self._ghosts[history] = None

    def forget_oldest(self) -> None:
        """Forget the oldest ghosts beyond the bound."""
        while len(self._ghosts) > max(_FEWEST, _GHOSTS * (len(self._table) - len(self._ghosts))):
            oldest, _ = self._ghosts.popitem(last=False)
            self._forget(oldest)

    def _forget(self, history: History) -> None:
        last = self._table.pop()
        if last is not history:
            self._table[history.at] = last
            last.at = history.at
        # An example whose outcome is open has nothing more to teach.
        history.example = None
        del self._by_key[history.key]
        history.document.paths -= 1
        if not history.document.paths:
            del self._documents[history.content]
