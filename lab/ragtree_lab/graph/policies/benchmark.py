"""Compares replacement policies and request orders on the KV of facts, in a simulation.

Prompts have the paths that searches in real graphs return for real questions, cut to a number of tokens, as dependency
trees. A branch is found if a prompt before had it behind the same ancestors and it is still kept. Policies, tree and
the bounded queue are the classes that serve. The baselines are LRU among policies, and FIFO among orders. BELADY knows
the whole stream.

Limits: no engine and no times; one prompt is served at a time. Popularity is drawn. FORESIGHT takes a branch's place in
its prompt for its depth, as if all trees were one path.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

from cachectl.policies.baselines import LeastRecentlyUsed
from cachectl.policies.foresight import Foresight
from examine.measuring import Progress
from generator.prompts.dependency_trees import Encode
from protocol.errors import ConfigError
from ragtree_lab.graph.facts import Facts
from ragtree_lab.graph.policies.forest import Forest, distinct_tokens
from ragtree_lab.graph.policies.rows import (
    Cell,
    GraphPoliciesResult,
    SetFacts,
    StreamRow,
    mean_rows,
    order_mean_rows,
    stream_row,
)
from ragtree_lab.graph.policies.simulation import Setting, check, token_hit_rate
from ragtree_lab.graph.policies.streams import STREAMS
from ragtree_lab.graph.policies.waiting_line import FIFO, ORDERS
from ragtree_lab.simulation.policies.lacr import LookaheadAware, NormalisedLookaheadAware

_LOOKS_AHEAD = frozenset({Foresight.name, LookaheadAware.name, NormalisedLookaheadAware.name})
"""Policies for which it matters what waits. In order of arrival, it does not for the others."""

_ROUNDS = 2
"""Prompts of a stream, for each question."""

POLICIES = ("LRU", "LFU", "PGDSF", "LACR", "LACR-NORMALISED", "FORESIGHT", "BELADY")

SIZES = (0.05, 0.2, 0.5)
WAITING = (0, 8, 32)


class Compared(NamedTuple):
    """What is compared: ``policies`` in order of arrival, and all orders under ``order_policies``.

    Each is run with caches of ``sizes``, as shares of a stream's distinct tokens, with each number of ``waiting``
    prompts, and on so many streams of each kind (``seeds``).
    """

    policies: Sequence[str] = POLICIES
    order_policies: Sequence[str] = (Foresight.name, LeastRecentlyUsed.name)
    sizes: Sequence[float] = SIZES
    waiting: Sequence[int] = WAITING
    seeds: int = 5


class _Stream(NamedTuple):
    prompts: list[Forest]
    distinct: int
    measured: dict[Setting, float]


class GraphPolicyBenchmark:
    """Compares on the facts of question sets. ``cost(cached, new)`` gives the seconds of a prefill.

    ``progress`` is called with (step, done, total). Raises UnknownPolicy, and ConfigError for BELADY among the orders'
    policies.
    """

    def __init__(self, compared: Compared, cost: Callable[[int, int], float], progress: Progress) -> None:
        # At once: to read graphs takes minutes.
        for policy in compared.policies:
            check(Setting(policy, 0))
        for policy, order in product(compared.order_policies, ORDERS):
            check(Setting(policy, 0, order=order))
        self._compared = compared
        self._cost = cost
        self._progress = progress

    def run(self, sets: Mapping[str, Sequence[Facts]], context_tokens: int, encode: Encode) -> GraphPoliciesResult:
        """Compare on the facts of each set, cut to so many tokens of paths in full.

        Raises ConfigError if no question of a set has facts.
        """
        facts: dict[str, SetFacts] = {}
        policies: list[StreamRow] = []
        orders: list[StreamRow] = []
        for name, given in sets.items():
            cut = [one.within(context_tokens, encode) for one in given]
            forests = [Forest(one, encode) for one in cut if one.paths]
            if not forests:
                raise ConfigError(f"no question of {name} has facts within {context_tokens} tokens", "context_tokens")
            facts[name] = SetFacts(len(forests), fmean(one.tokens for one in forests), distinct_tokens(forests))
            self._compare(name, forests, policies, orders)
        return GraphPoliciesResult(
            facts, mean_rows(policies, LookaheadAware.name), order_mean_rows(orders), policies, orders
        )

    def _compare(
        self, name: str, forests: Sequence[Forest], policies: list[StreamRow], orders: list[StreamRow]
    ) -> None:
        """Add the rows of one set."""
        step = f"simulating {name}"
        compared = self._compared
        done, total = 0, len(STREAMS) * len(compared.sizes) * len(compared.waiting)
        for kind in STREAMS:
            streams = self._streams(kind, forests)
            for size, waiting in product(compared.sizes, compared.waiting):
                self._progress(step, done, total)
                tokens = fmean(int(size * stream.distinct) for stream in streams)
                cell = Cell(name, kind, size, tokens, waiting)
                policies += self._policy_rows(cell, streams)
                orders += self._order_rows(cell, streams) if waiting else []
                done += 1
        self._progress(step, done, total)

    def _streams(self, kind: str, forests: Sequence[Forest]) -> list[_Stream]:
        streams: list[_Stream] = []
        for seed in range(self._compared.seeds):
            draws = random.Random(seed)  # noqa: S311 - repeatable streams
            asked = STREAMS[kind]([forest.roots for forest in forests], _ROUNDS * len(forests), draws)
            prompts = [forests[number] for number in asked]
            streams.append(_Stream(prompts, distinct_tokens(prompts), {}))
        return streams

    def _policy_rows(self, cell: Cell, streams: Sequence[_Stream]) -> list[StreamRow]:
        baseline = self._rates(cell, streams, LeastRecentlyUsed.name, FIFO)
        return [
            stream_row(cell, policy, FIFO, self._rates(cell, streams, policy, FIFO), baseline)
            for policy in self._compared.policies
        ]

    def _order_rows(self, cell: Cell, streams: Sequence[_Stream]) -> list[StreamRow]:
        rows: list[StreamRow] = []
        for policy in self._compared.order_policies:
            baseline = self._rates(cell, streams, policy, FIFO)
            rows += [
                stream_row(cell, policy, order, self._rates(cell, streams, policy, order), baseline) for order in ORDERS
            ]
        return rows

    def _rates(self, cell: Cell, streams: Sequence[_Stream], policy: str, order: str) -> list[float]:
        """Token hit rates by seed. Each is simulated once."""
        waiting = cell.waiting if policy in _LOOKS_AHEAD or order != FIFO else 0
        rates: list[float] = []
        for stream in streams:
            setting = Setting(policy, int(cell.cache_share * stream.distinct), waiting, order)
            if setting not in stream.measured:
                stream.measured[setting] = token_hit_rate(stream.prompts, setting, self._cost)
            rates.append(stream.measured[setting])
        return rates
