"""What a collection's indexes propose for a query."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from protocol.errors import NoDocuments
from protocol.retrieval import SearchKind
from retriever.embedding.base import Vector
from retriever.index.catalog import IndexCatalog
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.store.chunks import Ids

Ranking = dict[int, float]
"""Scores by chunk id, best first."""


class Proposals(NamedTuple):
    """The best chunks of each ranking after ``stage`` of ``of``. One that is not searched, or not yet, is empty."""

    dense: Ranking
    sparse: Ranking
    stage: int
    of: int


class Proposer:
    """Asks a collection's indexes. Some of what they propose may have left the store."""

    def __init__(self, catalog: IndexCatalog, lexical: LexicalCatalog) -> None:
        self._catalog = catalog
        self._lexical = lexical

    def propose(
        self, collection: int, kind: SearchKind, text: str, embedded: Callable[[], Vector], k: int, allowed: Ids | None
    ) -> Iterator[Proposals]:
        """Yield the ``k`` best of each ranking that a search of this ``kind`` needs, among ``allowed``, in stages.

        Words are searched first, because the query has to be ``embedded`` for the other index. Raises NoDocuments
        before the first stage, and later what embedding raises, or InvalidRequest for a query without a direction.
        """
        vectors, words = self._catalog.get(collection), self._lexical.get(collection)
        if vectors is None or words is None:
            raise NoDocuments("the collection has no documents to search yet", param="collection")
        sparse: Ranking = {}
        before = 0
        if kind is not SearchKind.DENSE:
            found = words.search(text, k, allowed)
            sparse = dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))
            before = 1
            yield Proposals({}, sparse, before, before + (kind is SearchKind.HYBRID))
        if kind is not SearchKind.SPARSE:
            for hits in vectors.search(embedded(), k, allowed):
                # Rounding can push the inner product of unit vectors above 1.
                scores = hits.scores.clip(-1.0, 1.0).tolist()
                dense = dict(zip(hits.ids.tolist(), scores, strict=True))
                yield Proposals(dense, sparse, before + hits.stage, before + hits.of)
