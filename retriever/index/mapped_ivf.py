"""The inverted file index for collections that are too large for memory."""

from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Trained
from retriever.index.faiss_index import RemovedIds, SliceScan
from retriever.index.ivf import IVFBase, Probe, listed_ids, trained_lists
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids

_CENTROIDS, _LISTS = "centroids", "lists"


class MappedIVFIndex(IVFBase):
    """An immutable inverted file on disk, mapped into memory, plus lists in memory around the same centroids.

    Added vectors go to the lists in memory, and removed ones are skipped in the file, until a rebuild. A search reads
    both, list by list.
    """

    kind = "mapped"

    def __init__(
        self, mapped: faiss.Index, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> None:
        # Faiss's type stubs are incomplete.
        self._mapped = cast("Any", mapped)
        self._mapped_ids = listed_ids(mapped)
        self._removed = RemovedIds()
        added: Any = faiss.IndexIVFFlat(
            self._mapped.quantizer, mapped.d, self._mapped.nlist, faiss.METRIC_INNER_PRODUCT
        )
        added.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        super().__init__(added, trained, settings, clock)

    @classmethod
    def open(
        cls, folder: Path, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "MappedIVFIndex":
        """Open the files that ``write_lists`` wrote. Raises an error of Faiss if another version wrote them."""
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        return cls(faiss.read_index(str(folder / _CENTROIDS), flags), trained, settings, clock)

    @property
    def size(self) -> int:
        """The number of vectors."""
        return len(self._mapped_ids) - len(self._removed) + int(self._index.ntotal)

    @property
    def needs_rebuild(self) -> bool:
        """Whether the share of added and removed vectors exceeds the limit."""
        changed = len(self._removed) + int(self._index.ntotal)
        return changed > self._settings.tuning.removed_share * len(self._mapped_ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors from memory, or skip them in the file. Unknown ids are ignored."""
        if len(ids):
            with self._changing():
                self._index.remove_ids(ids)
                self._removed.add(np.intersect1d(ids, self._mapped_ids))

    def ids(self) -> Ids:
        """Return the ids of all vectors, ascending."""
        return np.union1d(self._removed.without(self._mapped_ids), listed_ids(self._index))

    def _scan_of(self, probe: Probe, allowed: Ids | None) -> SliceScan:
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        added = probe.scan(self._index, lambda: selector)
        # More vectors may have been removed since the previous stage.
        mapped = probe.scan(self._mapped, lambda: self._removed.selector(allowed))

        def scan(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            mapped(begin, end, ids, scores)
            if self._index.ntotal:
                added_ids, added_scores = np.empty_like(ids), np.empty_like(scores)
                added(begin, end, added_ids, added_scores)
                both_ids, both_scores = np.concatenate((ids, added_ids)), np.concatenate((scores, added_scores))
                best = np.argsort(-both_scores, kind="stable")[: len(ids)]
                ids[:], scores[:] = both_ids[best], both_scores[best]

        return scan


def write_lists(
    folder: Path, sample: Vector, parts: Iterable[tuple[Ids, Vector]], count: int, most: int, settings: IndexSettings
) -> Trained:
    """Write the files of a mapped index of ``count`` vectors, given in parts of ([n], [n, dimension]).

    Apart from the sample that trains the centroids, about ``most`` vectors are in memory at once. Raises OSError.
    """
    empty = trained_lists(count, sample, settings)
    parts_on_disk: list[Path] = []
    part = faiss.clone_index(empty)
    for ids, vectors in parts:
        part.add_with_ids(vectors, ids)
        if part.ntotal >= most:
            parts_on_disk.append(_written(part, folder / f"part{len(parts_on_disk)}"))
            part = faiss.clone_index(empty)
    parts_on_disk.append(_written(part, folder / f"part{len(parts_on_disk)}"))
    _merge(parts_on_disk, empty, folder / _LISTS)
    _written(empty, folder / _CENTROIDS)
    for path in parts_on_disk:
        path.unlink()
    return Trained(count, empty.invlists.imbalance_factor())


def _merge(paths: Iterable[Path], empty: Any, path: Path) -> None:  # noqa: ANN401 - as Faiss's stubs are
    """Merge the lists of all parts into a file that ``empty`` uses. Faiss's own helper keeps the parts mapped."""
    mapped: list[Any] = [faiss.read_index(str(part), faiss.IO_FLAG_MMAP) for part in paths]
    lists: Any = faiss.InvertedListsPtrVector()  # type: ignore[attr-defined]
    for part in mapped:
        lists.push_back(part.invlists)
    merged: Any = faiss.OnDiskInvertedLists(empty.nlist, empty.code_size, str(path))
    empty.ntotal = merged.merge_from_multiple(lists.data(), lists.size(), False)
    empty.replace_invlists(merged, True)
    merged.this.disown()


def _written(index: faiss.Index, path: Path) -> Path:
    faiss.write_index(index, str(path))
    return path
