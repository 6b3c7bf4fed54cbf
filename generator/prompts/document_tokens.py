"""The token ids of documents, which come back again and again."""

from array import array
from collections.abc import Callable
from threading import Lock

from cachetools import LRUCache

from protocol.retrieval import Chunk

_REMEMBERED = 1 << 21
"""Tokens of all owners, of 4 bytes each: the documents of some 10,000 searches."""


class DocumentTokens:
    """Tokenises documents with ``encode``, and remembers the last ones. Thread-safe.

    Each owner's are its own, so that the time of a query tells nobody what others have.
    """

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        self._encode = encode
        # By owner and content hash.
        self._known: LRUCache[tuple[str, str], array[int]] = LRUCache(_REMEMBERED, getsizeof=len)
        self._lock = Lock()

    def of(self, document: Chunk, owner: str | None) -> tuple[int, ...]:
        """The token ids of a document in a prompt. They are remembered if it has an ``owner``."""
        if owner is None:
            return self._encode(document.text)
        key = owner, document.content_hash
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return tuple(known)
        token_ids = self._encode(document.text)
        if len(token_ids) <= _REMEMBERED:
            with self._lock:
                self._known[key] = array("I", token_ids)
        return token_ids
