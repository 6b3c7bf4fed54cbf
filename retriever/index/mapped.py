"""The inverted file for collections that are too large for memory."""

from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, Trained
from retriever.index.faiss_index import Scan
from retriever.index.inverted_file import InvertedFile, trained_lists
from retriever.index.lists import Probed, listed_ids
from retriever.index.removed import RemovedIds
from retriever.settings import IndexSettings

_CENTROIDS, _LISTS = "centroids", "lists"


class MappedIVFIndex(InvertedFile):
    """An inverted file on disk that never changes, mapped into memory, and lists round the same centroids in memory.

    What is added goes into memory, and what is removed of the file is passed over, until all is built anew. A search
    reads both, list by list.
    """

    kind = "mapped"

    def __init__(
        self, mapped: faiss.Index, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> None:
        # Faiss's type stubs lack half of what is called here.
        self._mapped = cast("Any", mapped)
        self._mapped_ids = listed_ids(mapped)
        self._removed = RemovedIds()
        fresh: Any = faiss.IndexIVFFlat(
            self._mapped.quantizer, mapped.d, self._mapped.nlist, faiss.METRIC_INNER_PRODUCT
        )
        fresh.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        super().__init__(fresh, trained, settings, clock)

    @classmethod
    def open(
        cls, folder: Path, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "MappedIVFIndex":
        """The index whose files ``write_lists`` wrote. Raises what Faiss does where another Faiss wrote them."""
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        return cls(faiss.read_index(str(folder / _CENTROIDS), flags), trained, settings, clock)

    @property
    def size(self) -> int:
        """How many vectors it holds."""
        return len(self._mapped_ids) - len(self._removed) + int(self._index.ntotal)

    @property
    def worn(self) -> bool:
        """Whether so much is in memory, or passed over, that it should be built again."""
        return len(self._removed) + int(self._index.ntotal) > self._settings.removed_share * len(self._mapped_ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors, or pass them over; ids that it does not hold are ignored."""
        if len(ids):
            with self._changing():
                self._index.remove_ids(ids)
                self._removed.add(np.intersect1d(ids, self._mapped_ids))

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return np.union1d(self._removed.without(self._mapped_ids), listed_ids(self._index))

    def _scan_of(self, probed: Probed, allowed: Ids | None) -> Scan:
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        fresh = probed.scan(self._index, lambda: selector)
        # What is passed over may have become more since the stage before.
        mapped = probed.scan(self._mapped, lambda: self._removed.selector(allowed))

        def scan(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            mapped(begin, end, ids, scores)
            if self._index.ntotal:
                more_ids, more_scores = np.empty_like(ids), np.empty_like(scores)
                fresh(begin, end, more_ids, more_scores)
                both_ids, both_scores = np.concatenate((ids, more_ids)), np.concatenate((scores, more_scores))
                best = np.argsort(-both_scores, kind="stable")[: len(ids)]
                ids[:], scores[:] = both_ids[best], both_scores[best]

        return scan


def write_lists(
    folder: Path, sample: Vector, parts: Iterable[tuple[Ids, Vector]], count: int, most: int, settings: IndexSettings
) -> Trained:
    """Write the files of a mapped index of ``count`` vectors, which come in parts of ([n], [n, dimension]).

    Not many more than ``most`` of them are in memory at once, beside the sample for the centroids. Raises OSError.
    """
    empty = trained_lists(count, sample, settings)
    shards: list[Path] = []
    shard = faiss.clone_index(empty)
    for ids, vectors in parts:
        shard.add_with_ids(vectors, ids)
        if shard.ntotal >= most:
            shards.append(_written(shard, folder / f"shard{len(shards)}"))
            shard = faiss.clone_index(empty)
    shards.append(_written(shard, folder / f"shard{len(shards)}"))
    _merge(shards, empty, folder / _LISTS)
    _written(empty, folder / _CENTROIDS)
    for path in shards:
        path.unlink()
    return Trained(count, empty.invlists.imbalance_factor())


def _merge(shards: Iterable[Path], empty: Any, path: Path) -> None:  # noqa: ANN401 - as Faiss's stubs are
    """Give ``empty`` the lists of all shards, in a file; Faiss's own helper would keep the shards mapped for ever."""
    mapped: list[Any] = [faiss.read_index(str(shard), faiss.IO_FLAG_MMAP) for shard in shards]
    lists: Any = faiss.InvertedListsPtrVector()  # type: ignore[attr-defined]
    for shard in mapped:
        lists.push_back(shard.invlists)
    merged: Any = faiss.OnDiskInvertedLists(empty.nlist, empty.code_size, str(path))
    empty.ntotal = merged.merge_from_multiple(lists.data(), lists.size(), False)
    empty.replace_invlists(merged, True)
    merged.this.disown()


def _written(index: faiss.Index, path: Path) -> Path:
    faiss.write_index(index, str(path))
    return path
