"""Which of many names stand in a text."""

from collections.abc import Iterable

from retriever.graph.names import words_of


class _Node:
    """What may follow some words: ``next`` words, and the ``key`` that ends here."""

    __slots__ = ("key", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.key = ""


class NameFinder:
    """Finds names by their keys. A name stands in a text if its key's words do, one after another.

    The time depends on the length of the text and of the longest key, not on how many keys there are.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._root = _Node()
        for key in keys:
            node = self._root
            for word in key.split():
                node = node.next.setdefault(word, _Node())
            node.key = key

    def found_in(self, text: str) -> set[str]:
        """Return the keys of the names that stand in a text. The empty key stands nowhere."""
        # Where all words have been read, an empty one stands, which follows no word.
        words = [*words_of(text), ""]
        found = set()
        for first, word in enumerate(words):
            node, at = self._root.next.get(word), first
            while node:
                if node.key:
                    found.add(node.key)
                at += 1
                node = node.next.get(words[at])
        return found
