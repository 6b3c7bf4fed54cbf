"""Keeps the auxiliary model's KV of documents."""

import threading
from collections import OrderedDict
from typing import NamedTuple

from generator.composing.deletions import Deletions, IsDeleted
from generator.composing.selection.base import Content
from ragtree_lab.selectors.auxiliary.auxiliary_model import DocumentKv
from ragtree_lab.selectors.auxiliary.token_spans import Span


class ReadDocument(NamedTuple):
    """A document's ``kv`` in the auxiliary model, and the characters of its tokens in the engine's (``spans``)."""

    kv: DocumentKv
    spans: list[Span]


class DocumentCache:
    """The most recently used documents' KV, of at most ``size`` bytes. May be used from several threads."""

    def __init__(self, size: int) -> None:
        self._deletions = Deletions()
        self._room = size
        self._kept: OrderedDict[Content, ReadDocument] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def deletions(self) -> int:
        """How often documents were deleted."""
        return self._deletions.count

    def get(self, content: Content) -> ReadDocument | None:
        """A document's KV, if it is kept."""
        with self._lock:
            found = self._kept.get(content)
            if found is not None:
                self._kept.move_to_end(content)
            return found

    def add(self, content: Content, document: ReadDocument, deletions: int) -> None:
        """Keep a document's KV, if there is room for it at all, and if it is in no deletion behind ``deletions``."""
        with self._lock:
            if content in self._kept:
                return
            if self._deletions.left_since(deletions, content.namespace, (content.key,)) is None:
                return
            self._kept[content] = document
            self._room -= document.kv.size
            while self._room < 0:
                self._room += self._kept.popitem(last=False)[1].kv.size

    def forget(self, is_deleted: IsDeleted) -> None:
        """Drop the documents that are deleted."""
        with self._lock:
            self._deletions.add(is_deleted)
            for content in [one for one in self._kept if is_deleted(one.namespace, (one.key,))]:
                self._room += self._kept.pop(content).kv.size
