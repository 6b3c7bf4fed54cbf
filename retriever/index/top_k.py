"""The best hits of a search that reads its vectors in parts."""

from collections.abc import Callable

import numpy as np

from retriever.embedding.base import Vector
from retriever.store.chunks import Ids

_TIES_GROWTH = 8

Scan = Callable[[Ids, Vector], None]
"""Writes the best hits of a part, highest score first, into ids and scores, [n]. Unused entries have the id -1."""


class TopK:
    """The ``k`` best hits of all parts so far, by descending score, then by id.

    The order is total, and each part contributes all hits that may enter. So the result does not depend on how the
    vectors were cut into parts, even with duplicate texts of equal score.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        # One table holds the k best so far, then the k + 1 best of the next part, so merging copies nothing.
        self._ids, self._scores = np.empty(2 * k + 1, np.int64), np.empty(2 * k + 1, np.float32)
        self._ids.fill(-1)
        self._scores.fill(-np.inf)
        self._part_ids, self._part_scores = self._ids[k:], self._scores[k:]
        self._best = self._ids[:0], self._scores[:0]

    def merge(self, scan: Scan) -> tuple[Ids, Vector]:
        """Merge the hits of a part. Return ids and scores of the best hits so far, [k] or fewer."""
        k, ids, scores = self._k, self._ids, self._scores
        scan(self._part_ids, self._part_scores)
        if scores[k] < scores[k - 1]:
            return self._best
        if scores[-1] == scores[-2] >= scores[k - 1] and ids[-1] >= 0:
            # Some hits beyond the cut may tie with the last one, and Faiss picks any of them.
            ids, scores = self._with_ties(scan)
        best = np.lexsort((ids, -scores))[:k]
        best_ids, best_scores = ids[best], scores[best]
        self._ids[:k], self._scores[:k] = best_ids, best_scores
        found = k if best_ids[-1] >= 0 else np.count_nonzero(best_ids >= 0)
        self._best = best_ids[:found], best_scores[:found]
        return self._best

    def _with_ties(self, scan: Scan) -> tuple[Ids, Vector]:
        """Return the best hits so far, and all hits of the part that score at least as high as its k-th."""
        k, count = self._k, self._k + 1
        while True:
            count *= _TIES_GROWTH
            ids, scores = np.full(count, -1, np.int64), np.full(count, -np.inf, np.float32)
            scan(ids, scores)
            if ids[-1] < 0 or scores[-1] < scores[k - 1]:
                return np.concatenate((self._ids[:k], ids)), np.concatenate((self._scores[:k], scores))
