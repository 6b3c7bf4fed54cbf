"""The choice of an index for a collection, and the making of it."""

from typing import Literal

from retriever.embedding.base import Vector
from retriever.index.base import Ids, TrainedIndex
from retriever.index.files import SavedIndex
from retriever.index.flat import FlatIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.ivf import IVFIndex
from retriever.settings import IndexSettings

Kind = Literal["flat", "ivf", "hnsw"]


class IndexBuilder:
    """Makes indexes of vectors, [n, dimension], of the kind that the settings ask for."""

    def __init__(self, dimension: int, settings: IndexSettings) -> None:
        self._dimension = dimension
        self._settings = settings

    def kind(self, count: int) -> Kind:
        """The kind that so many vectors should have; a graph or lists of none cannot be built."""
        if self._settings.kind == "auto":
            return "flat" if count < self._settings.ivf_threshold else "ivf"
        return self._settings.kind if count else "flat"

    def build(self, ids: Ids, vectors: Vector) -> FlatIndex | TrainedIndex:
        """An index of these vectors."""
        match self.kind(len(ids)):
            case "ivf":
                return IVFIndex.train(ids, vectors, self._settings)
            case "hnsw":
                return HNSWIndex.build(ids, vectors, self._settings)
            case "flat":
                index = FlatIndex(self._dimension, self._settings)
                if len(ids):
                    index.add(ids, vectors)
                return index

    def load(self, saved: SavedIndex) -> TrainedIndex:
        """A saved index. Raises what Faiss does where another Faiss wrote it."""
        implementation = HNSWIndex if saved.kind == HNSWIndex.kind else IVFIndex
        return implementation.load(saved.dump, saved.trained, self._settings)
