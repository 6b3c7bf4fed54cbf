"""The best hits of a search that looks at its vectors part by part."""

from collections.abc import Callable

import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids

_TIES_GROWTH = 8

Scan = Callable[[Ids, Vector], None]
"""Writes the best hits of a part, highest score first, into ids and scores, [n]; an id is -1 where there are fewer."""


class Ranking:
    """The ``k`` best hits of all parts so far, by score, and then by id.

    Their order is total and every part gives the whole of what may enter, so the outcome does not depend on how the
    vectors were cut into parts, even where texts stand there twice and score alike.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        # The best so far, and behind them the best of the next part and one more, in one table: nothing is joined.
        self._ids, self._scores = np.empty(2 * k + 1, np.int64), np.empty(2 * k + 1, np.float32)
        self._ids.fill(-1)
        self._scores.fill(-np.inf)
        self._part_ids, self._part_scores = self._ids[k:], self._scores[k:]
        self._best = self._ids[:0], self._scores[:0]

    def take(self, scan: Scan) -> tuple[Ids, Vector]:
        """Merge in a part; ids and scores of the best of all so far, [k] or fewer."""
        k, ids, scores = self._k, self._ids, self._scores
        scan(self._part_ids, self._part_scores)
        if scores[k] < scores[k - 1]:
            return self._best
        if scores[-1] == scores[-2] >= scores[k - 1] and ids[-1] >= 0:
            # Those left out may equal the last that enters: which of them Faiss gives is chance.
            ids, scores = self._with_ties(scan)
        best = np.lexsort((ids, -scores))[:k]
        best_ids, best_scores = ids[best], scores[best]
        self._ids[:k], self._scores[:k] = best_ids, best_scores
        found = k if best_ids[-1] >= 0 else np.count_nonzero(best_ids >= 0)
        self._best = best_ids[:found], best_scores[:found]
        return self._best

    def _with_ties(self, scan: Scan) -> tuple[Ids, Vector]:
        """The best so far, and of the part all that score no less than its first ``k``."""
        k, asked = self._k, self._k + 1
        while True:
            asked *= _TIES_GROWTH
            ids, scores = np.full(asked, -1, np.int64), np.full(asked, -np.inf, np.float32)
            scan(ids, scores)
            if ids[-1] < 0 or scores[-1] < scores[k - 1]:
                return np.concatenate((self._ids[:k], ids)), np.concatenate((self._scores[:k], scores))
