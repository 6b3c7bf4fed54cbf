"""The lists that a query reads from an inverted file, and how they are scanned."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.faiss_index import SliceScan
from retriever.index.stage_planner import Slice
from retriever.store.chunks import Ids


class Probe(NamedTuple):
    """A query, [1, dimension], with the lists to read and their scores, each [lists], nearest first.

    ``slices`` are the parts that the stages are expected to read.
    """

    query: Vector
    lists: Ids
    nearness: Vector
    slices: Sequence[Slice]

    def scan(
        self,
        index: Any,  # noqa: ANN401 - as Faiss's stubs are
        selector: Callable[[], faiss.IDSelector | None],
    ) -> SliceScan:
        """Return the scan of these lists in an index. Each call of the scan calls ``selector`` again."""
        parameters: Any = faiss.SearchParametersIVF()
        query_at = faiss.swig_ptr(self.query)
        # Create the pointers before reading any lists, which evict them from the processor's caches.
        parts: dict[tuple[int, int], tuple[Any, Any]] = {part: self._at(*part) for part in self.slices}
        table: list[Any] = [None, None, None]

        def scan(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            parameters.nprobe, parameters.sel = end - begin, selector()
            part = parts.get((begin, end)) or self._at(begin, end)
            if table[0] is not ids:
                table[:] = ids, faiss.swig_ptr(scores), faiss.swig_ptr(ids)
            # Call Faiss directly: its wrapper takes no parameters.
            index.search_preassigned_c(1, query_at, len(ids), *part, table[1], table[2], False, parameters)

        return scan

    def _at(self, begin: int, end: int) -> tuple[Any, Any]:
        """Return pointers to some of the lists and their scores."""
        return faiss.swig_ptr(self.lists[begin:end]), faiss.swig_ptr(self.nearness[begin:end])


def listed_ids(index: Any) -> Ids:  # noqa: ANN401 - as Faiss's stubs are
    """Return the ids in an index's lists, ascending."""
    lists = index.invlists
    parts = [
        faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
        for number in range(lists.nlist)
        if lists.list_size(number)
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
