"""Names of entities: how two of them are known to be the same, and how long one may be."""

import re
import unicodedata

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
