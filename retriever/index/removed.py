"""The ids that an index cannot let go of before it is built anew."""

import faiss
import numpy as np

from retriever.index.base import Ids


class RemovedIds:
    """Ids that searches pass over; changed and read under the lock of the index that holds them."""

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._others: faiss.IDSelector | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Ids) -> None:
        """Pass over these, too."""
        self._ids = np.union1d(self._ids, ids)
        self._others = faiss.IDSelectorNot(faiss.IDSelectorBatch(self._ids))

    def without(self, ids: Ids) -> Ids:
        """Those of the ids, each given once, that are not passed over, in their order."""
        return np.setdiff1d(ids, self._ids, assume_unique=True)

    def selector(self, allowed: Ids | None) -> faiss.IDSelector | None:
        """What makes Faiss find those of ``allowed`` alone that are not passed over; None where it may find all."""
        return self._others if allowed is None else faiss.IDSelectorBatch(self.without(allowed))
