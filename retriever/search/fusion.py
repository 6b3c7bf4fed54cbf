"""From rankings to results: how the dense and the sparse one are fused."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from protocol.retrieval import SearchKind

_DEPTH_PER_RESULT, _LEAST_DEPTH = 5, 50

_DENSE_WEIGHT = 2.0
"""How much a cosine counts. The best BM25 score of a query counts 1. docs/retrieval.md says how it was chosen."""

K = TypeVar("K", bound=Hashable)


class Hit(NamedTuple):
    """A hit's score in the result, and after it those of its rankings; None if it is not among their best."""

    score: float
    dense: float | None
    sparse: float | None


def depth(kind: SearchKind, top_k: int, shown: int = 0) -> int:
    """How many hits of each ranking a search for ``top_k`` results needs, if its sets have up to ``shown`` chunks."""
    least = max(_LEAST_DEPTH, _DEPTH_PER_RESULT * top_k) if kind is SearchKind.HYBRID else top_k
    return max(least, shown)


def ranked(kind: SearchKind, dense: Mapping[K, float], sparse: Mapping[K, float], wanted: int) -> dict[K, Hit]:
    """Return the hits of a search of this ``kind``, best first.

    Rankings map keys to scores, best first, and have ``wanted`` hits, unless there are no more.
    """
    match kind:
        case SearchKind.DENSE:
            return {key: Hit(score, score, None) for key, score in dense.items()}
        case SearchKind.SPARSE:
            return {key: Hit(score, None, score) for key, score in sparse.items()}
        case SearchKind.HYBRID:
            return _fused(dense, sparse, wanted)


def _fused(dense: Mapping[K, float], sparse: Mapping[K, float], wanted: int) -> dict[K, Hit]:
    """A hit's score is its cosine, weighted, and its BM25 score as a share of the query's best one.

    Cosines have a fixed scale and BM25 scores have none, so only the latter are normalised. A ranking in which
    all hits score nearly alike thus decides little (Bruch et al. 2023, "An analysis of fusion functions for hybrid
    retrieval", compare such sums with reciprocal ranks). A hit that is missing in a ranking scores there like its last
    one, or 0 if it has none of the query's words. Among equals, the better dense hit comes first.
    """
    lowest = min(dense.values(), default=0.0)
    best = max(sparse.values(), default=1.0)
    least = min(sparse.values()) if len(sparse) >= wanted else 0.0
    scores = {
        key: _DENSE_WEIGHT * dense.get(key, lowest) + sparse.get(key, least) / best for key in {**dense, **sparse}
    }
    ordered = sorted(scores, key=lambda key: -scores[key])
    return {key: Hit(scores[key], dense.get(key), sparse.get(key)) for key in ordered}
