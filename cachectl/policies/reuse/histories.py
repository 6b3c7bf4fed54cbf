"""The histories of all paths that matter, within bounds."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from cachectl.policies.reuse.history import History, Popularity

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
