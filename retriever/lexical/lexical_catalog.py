"""The catalog: one lexical index per collection."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import structlog
from blake3 import blake3

from retriever.lexical.lexical_index import LexicalIndex
from retriever.lexical.words import ANALYZER_VERSION
from retriever.store.store import Store

_log = structlog.get_logger(__name__)


class LexicalCatalog:
    """The lexical indexes of all collections, by collection key, below ``folder``.

    Any thread may call ``get``. All other methods change indexes and belong to one thread. The store is the source of
    truth: ``open`` compares each index with it id by id, and corrects it before any search. ``sweep`` comes before any
    id is given to a chunk. Otherwise, an id that a crash has left in an index alone would name another chunk there. An
    index of chunks with another ``fingerprint`` is not used.
    """

    def __init__(self, store: Store, folder: Path, fingerprint: str) -> None:
        self._store = store
        self._folder = folder
        version = blake3(f"{ANALYZER_VERSION} {fingerprint}".encode()).hexdigest(6)
        self._current = folder / f"words-{int(version, 16)}"
        self._indexes: dict[int, LexicalIndex] = {}

    def get(self, collection: int) -> LexicalIndex | None:
        """Return a collection's index, or None if it has none."""
        return self._indexes.get(collection)

    def sweep(self) -> None:
        """Delete the indexes of collections without chunks, and what the store has not. Raises OSError."""
        with self._store.database.read() as transaction:
            collections = self._store.chunks.collections(transaction)
        for folder in self._superfluous(collections):
            shutil.rmtree(folder)
        for collection in collections:
            if not (self._current / str(collection)).exists():
                continue
            index = self._opened(collection)
            with self._store.database.read() as transaction:
                stale = np.setdiff1d(index.ids(), self._store.chunks.ids(transaction, collection))
            if len(stale):
                index.change(removed=stale.tolist())

    def open(self) -> None:
        """Open the index of every collection that has chunks. Raises OSError."""
        with self._store.database.read() as transaction:
            collections = self._store.chunks.collections(transaction)
        for collection in collections:
            index = self._opened(collection)
            self._reconcile(index, collection)
            self._indexes[collection] = index

    def add(self, collection: int, added: Iterable[tuple[int, str]]) -> None:
        """Add chunks, as (id, text), to a collection's index, creating it if necessary. Raises OSError."""
        index = self._indexes.get(collection) or self._opened(collection)
        index.change(added)
        self._indexes[collection] = index

    def remove(self, collection: int, removed: Sequence[int]) -> None:
        """Remove chunks from a collection's index. Unknown ids are ignored. Raises OSError."""
        index = self._indexes.get(collection)
        if index is not None and removed:
            index.change(removed=removed)

    def _superfluous(self, collections: Iterable[int]) -> Iterator[Path]:
        """The folders of other analyzers and fingerprints, and of collections without chunks."""
        named = {str(collection) for collection in collections}
        if self._folder.exists():
            yield from (folder for folder in self._folder.iterdir() if folder != self._current)
        if self._current.exists():
            yield from (folder for folder in self._current.iterdir() if folder.name not in named)

    def _opened(self, collection: int) -> LexicalIndex:
        folder = self._current / str(collection)
        # tantivy's own files are as open as the umask says.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return LexicalIndex(folder)
        except ValueError as error:
            # A crash of the machine or another version of tantivy. The store has everything.
            _log.warning("lexical index not readable, rebuilding", collection=collection, error=str(error))
            shutil.rmtree(folder)
            return LexicalIndex(folder)

    def _reconcile(self, index: LexicalIndex, collection: int) -> None:
        with self._store.database.read() as transaction:
            live, held = self._store.chunks.ids(transaction, collection), index.ids()
            missing, stale = np.setdiff1d(live, held), np.setdiff1d(held, live)
            if len(missing) or len(stale):
                index.change(chain.from_iterable(self._store.chunks.texts(transaction, missing)), stale.tolist())
                _log.info("lexical index corrected", collection=collection, added=len(missing), removed=len(stale))
