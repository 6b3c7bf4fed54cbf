"""The chance that a path is used again, learnt from the traffic: the past of paths, and a model of it."""

from __future__ import annotations

from collections import OrderedDict
from math import exp, log2, sqrt
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


_RATE = 0.25
# AdaGrad's sums of earlier gradients fade, so that the model follows traffic that changes.
_FADING = 0.9999
# Decayed counts (log2) below this count as none.
_FLOOR = -5.0
_AGES = 16
_ROWS = len(BANDS) * len(CLASSES)
_SHORT, _MIDDLE, _LONG = (1 / half_life for half_life in HALF_LIVES)


class ReuseModel:
    """P(used within the next W requests) = sigmoid(w·f + t[cell]); its logit ranks paths.

    The features f of a path whose last use is a requests ago:

    - a constant
    - log2(1 + a)
    - log2 of its uses, decayed with half-lives of 64, 1,024 and 16,384 requests
    - whether it comes after at least one document, two, or four
    - log2 of the decayed uses of its document on all paths
    - whether it was used only once
    - whether it was the end of its latest request

    The weights balance recency (short half-lives) against frequency (long ones), and learn what depth means to this
    traffic. ``t`` is a correction by cell: a band of depth, a class of uses and a class of age. Gradient steps are
    AdaGrad's (Duchi et al. 2011), with fading memory.
    """

    def __init__(self) -> None:
        # Learning starts from this: young, frequent and near the root means likely.
        self._weights = [-2.0, -1.0, 0.4, 0.4, 0.4, -0.5, 0.0, 0.0, 0.0, -0.5, 0.0]
        self._squares = [1.0] * len(self._weights)
        self._corrections = [0.0] * (_ROWS * _AGES)
        self._correction_squares = [1.0] * (_ROWS * _AGES)

    def logit(self, history: History, tick: int) -> float:
        """The logit of a path's chance of reuse as of request ``tick``."""
        # What `learn` computes from `example`, written out: this runs for every candidate for eviction.
        constant, by_age, by_short, by_middle, by_long, deep, deeper, deepest, by_document, once, ending = self._weights
        age = tick - history.last
        short, middle, long = history.decayed
        short -= age * _SHORT
        middle -= age * _MIDDLE
        long -= age * _LONG
        document = history.document
        popularity = document.count - (tick - document.last) * _LONG
        classes = (age + 1).bit_length()
        logit = (
            constant
            + by_age * (log2(1.0 + age) * 0.25 - 1.5)
            + 0.5
            * (
                by_short * (short if short > _FLOOR else _FLOOR)
                + by_middle * (middle if middle > _FLOOR else _FLOOR)
                + by_long * (long if long > _FLOOR else _FLOOR)
            )
            + 0.25 * by_document * (popularity if popularity > _FLOOR else _FLOOR)
            + self._corrections[history.row * _AGES + (classes if classes < _AGES else _AGES) - 1]
        )
        if history.band:
            logit += deep
            if history.band > 1:
                logit += deeper
                if history.band > 2:
                    logit += deepest
        if history.last_in_request:
            logit += ending
        return logit + once if history.uses <= 1 else logit

    def example(self, history: History, tick: int) -> Example:
        """An example of the path as it is now."""
        age = tick - history.last
        short, middle, long = history.decayed
        document = history.document
        features = (
            1.0,
            log2(1.0 + age) * 0.25 - 1.5,
            0.5 * max(_FLOOR, short - age * _SHORT),
            0.5 * max(_FLOOR, middle - age * _MIDDLE),
            0.5 * max(_FLOOR, long - age * _LONG),
            1.0 if history.band > 0 else 0.0,
            1.0 if history.band > 1 else 0.0,
            1.0 if history.band > 2 else 0.0,
            0.25 * max(_FLOOR, document.count - (tick - document.last) * _LONG),
            1.0 if history.uses <= 1 else 0.0,
            1.0 if history.last_in_request else 0.0,
        )
        return Example(tick, history, features, history.row * _AGES + min(_AGES, (age + 1).bit_length()) - 1)

    def learn(self, example: Example, used: bool) -> None:
        """Take one gradient step towards an example's outcome."""
        weights, squares, features, cell = self._weights, self._squares, example.features, example.cell
        logit = self._corrections[cell]
        for weight, feature in zip(weights, features, strict=True):
            logit += weight * feature
        error = used - 1.0 / (1.0 + exp(-max(-30.0, min(30.0, logit))))
        for index, feature in enumerate(features):
            if feature:
                gradient = error * feature
                squares[index] = square = squares[index] * _FADING + gradient * gradient
                weights[index] += _RATE * gradient / sqrt(square)
        self._correction_squares[cell] = square = self._correction_squares[cell] * _FADING + error * error
        self._corrections[cell] += _RATE * error / sqrt(square)
