"""Names of entities: how two of them are known to be the same, how long one may be, and which stand in a text."""

import re
import unicodedata
from collections.abc import Iterable

LONGEST_NAME = 120
"""Characters of a name or a relation. Anything longer is a clause."""

_ARTICLES = frozenset({"a", "an", "the"})
_SEPARATORS = re.compile(r"[\W_]+")


def words_of(text: str) -> list[str]:
    """Return the words of a text without case, accents and punctuation, as names are compared."""
    plain = text.casefold()
    if not text.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(c))
    return _SEPARATORS.sub(" ", plain).split()


def name_key(name: str) -> str:
    """Return what all spellings of a name share: its words without case, accents, punctuation and leading articles.

    Empty for a name without a letter or digit, and for one that is too long.
    """
    words = words_of(name)
    while len(words) > 1 and words[0] in _ARTICLES:
        words = words[1:]
    key = " ".join(words)
    return key if len(key) <= LONGEST_NAME else ""


def tidy(name: str) -> str:
    """Return a name as people read it: white space is one space each, quotation marks around it are gone."""
    return " ".join(name.split()).strip("\"'\u201c\u201d\u2018\u2019` ")


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
