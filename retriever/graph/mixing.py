"""Mode mix: the ranking of a search without a graph, and the graph's own, as one."""

from collections.abc import Mapping, Sequence

_GRAPH_WEIGHT = 0.4
"""How much the graph's best chunk counts. The best one of the search without a graph counts 1."""

_HALF_AT = 10
"""The place, from 0, at which a chunk of the search without a graph counts half as much as its best one."""


def by_place(found: Sequence[int]) -> dict[int, float]:
    """What the chunks ``found`` without a graph count, by id: 1 for the first one, and less at each place.

    Places and not scores, because those of near vectors or of a fusion hardly differ: the graph alone would decide.
    """
    return {id_: _HALF_AT / (_HALF_AT + place) for place, id_ in enumerate(found)}


def mixed(base: Mapping[int, float], ranking: Mapping[int, float]) -> dict[int, float]:
    """The weighted sum of what chunks count without the graph and of their scores in it (1 for the best), best first.

    A chunk that is missing on one side counts 0 there.
    """
    sums = {id_: base.get(id_, 0.0) + _GRAPH_WEIGHT * ranking.get(id_, 0.0) for id_ in dict.fromkeys([*base, *ranking])}
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
