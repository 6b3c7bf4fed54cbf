"""Ids that an index cannot delete before its next rebuild."""

import faiss
import numpy as np

from retriever.store.chunks import Ids


class RemovedIds:
    """Ids that searches skip. Guarded by the lock of the index that owns them."""

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._others: faiss.IDSelector | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Ids) -> None:
        """Skip these ids too."""
        self._ids = np.union1d(self._ids, ids)
        self._others = faiss.IDSelectorNot(faiss.IDSelectorBatch(self._ids))

    def without(self, ids: Ids) -> Ids:
        """Return those of the ids, each given once, that are not removed, in order."""
        return np.setdiff1d(ids, self._ids, assume_unique=True)

    def selector(self, allowed: Ids | None) -> faiss.IDSelector | None:
        """Return the Faiss selector for ``allowed`` without the removed ids; None if everything may be found."""
        return self._others if allowed is None else faiss.IDSelectorBatch(self.without(allowed))
