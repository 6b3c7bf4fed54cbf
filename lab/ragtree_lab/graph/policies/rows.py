"""Token hit rates of policies and orders over streams of facts."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from examine.measuring.statistics import bootstrap_interval


class StreamRow(msgspec.Struct, frozen=True):
    """One policy and order on one stream of one set's questions, over several seeds.

    ``cache_share`` is the cache's size over the distinct tokens of the stream, and ``cache_tokens`` its mean size.
    ``waiting`` prompts wait at each turn. ``token_hit_rate`` is the mean of ``by_seed``, and ``interval`` its 95 %
    bootstrap interval. ``gain`` is the mean difference from the baseline on the same stream, and ``gain_interval`` its
    interval: from LRU among policies, and from FIFO under the same policy among orders.
    """

    set: str
    stream: str
    cache_share: float
    cache_tokens: float
    waiting: int
    policy: str
    order: str
    token_hit_rate: float
    interval: tuple[float, float]
    gain: float
    gain_interval: tuple[float, float]
    by_seed: list[float]


class MeanRow(msgspec.Struct, frozen=True):
    """Mean token hit rates over all sets, streams and sizes with so many prompts ``waiting``, by policy.

    ``lacr_over`` is LACR's mean over that of each other policy; empty if LACR was not among them.
    """

    waiting: int
    token_hit_rate: dict[str, float]
    lacr_over: dict[str, float]


class OrderMeanRow(msgspec.Struct, frozen=True):
    """Mean token hit rates over all sets, streams and sizes with so many prompts ``waiting``, by order."""

    waiting: int
    policy: str
    token_hit_rate: dict[str, float]


class SetFacts(msgspec.Struct, frozen=True):
    """The prompts of one set: how many have facts, the mean tokens of their trees, and the tokens that are distinct."""

    prompts: int
    tree_tokens: float
    distinct_tokens: int


class GraphPoliciesResult(msgspec.Struct, frozen=True):
    """Results by policy, all in order of arrival, and by order; with their means."""

    sets: dict[str, SetFacts]
    means: list[MeanRow]
    order_means: list[OrderMeanRow]
    policies: list[StreamRow]
    orders: list[StreamRow]


class Cell(msgspec.Struct, frozen=True):
    """What a row is of, before it is measured."""

    set: str
    stream: str
    cache_share: float
    cache_tokens: float
    waiting: int


def stream_row(cell: Cell, policy: str, order: str, rates: Sequence[float], baseline: Sequence[float]) -> StreamRow:
    """The row of one policy and order, from its rates and the baseline's by seed. Raises ValueError without seeds."""
    gains = [rate - base for rate, base in zip(rates, baseline, strict=True)]
    return StreamRow(
        cell.set,
        cell.stream,
        cell.cache_share,
        cell.cache_tokens,
        cell.waiting,
        policy,
        order,
        fmean(rates),
        bootstrap_interval(rates, 0),
        fmean(gains),
        bootstrap_interval(gains, 0),
        list(rates),
    )


def mean_rows(rows: Sequence[StreamRow], lacr: str) -> list[MeanRow]:
    """The means of policies by number of waiting prompts, in the rows' order."""
    found: list[MeanRow] = []
    for waiting in dict.fromkeys(row.waiting for row in rows):
        rates = _means([(row.policy, row.token_hit_rate) for row in rows if row.waiting == waiting])
        own = rates.get(lacr)
        over = {name: own / rate for name, rate in rates.items() if name != lacr and rate} if own is not None else {}
        found.append(MeanRow(waiting, rates, over))
    return found


def order_mean_rows(rows: Sequence[StreamRow]) -> list[OrderMeanRow]:
    """The means of orders by policy and number of waiting prompts, in the rows' order."""
    return [
        OrderMeanRow(
            waiting,
            policy,
            _means([(row.order, row.token_hit_rate) for row in rows if (row.waiting, row.policy) == (waiting, policy)]),
        )
        for waiting, policy in dict.fromkeys((row.waiting, row.policy) for row in rows)
    ]


def _means(rates: Sequence[tuple[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for name, _ in rates)
    return {name: fmean(rate for each, rate in rates if each == name) for name in names}
