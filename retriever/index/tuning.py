"""How indexes are built, rebuilt and read in stages: values that nobody who runs them has to choose."""

from typing import NamedTuple


class IndexTuning(NamedTuple):
    """Tests and benchmarks change them.

    - ``ivf_threshold``: with the kind auto, collections below this many vectors use flat.
    - ``retrain_growth``, ``retrain_imbalance``: ivf is rebuilt when it has grown or shrunk by the first factor, or when
      its lists are more uneven by the second.
    - ``removed_share``: rebuild when a larger share has been removed from hnsw, or removed or added on disk.
    - ``lists``: those of an ivf index; None: ``4 * sqrt(vectors)``. ``min_probes``: the least that a search reads.
    - ``links``: neighbours of a vector on each level of hnsw; the lowest level has twice as many. ``build_beam``:
      candidates for the neighbours of a new vector.
    - ``stages``: the most of a search. ``stage_ms``: the shortest expected time of one, in milliseconds. A search below
      two of them has one stage. Stages cost a few percent of a search, and give its first candidates much earlier.
    """

    ivf_threshold: int = 4096
    retrain_growth: float = 2.0
    retrain_imbalance: float = 2.0
    removed_share: float = 0.2
    lists: int | None = None
    min_probes: int = 32
    links: int = 32
    build_beam: int = 100
    stages: int = 16
    stage_ms: float = 3.0
