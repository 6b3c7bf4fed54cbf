"""Serves a stream of prompts from one cache of branches, and counts what is found in it.

One prompt is served at a time. When it is served, a fixed number of others wait, and are what the policy looks ahead
to. The line is filled up before each turn, and runs empty at the end.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachectl.branches import BranchTree
from cachectl.policies.base import ReplacementPolicy
from cachectl.policies.lookahead import Lookahead
from protocol.errors import ConfigError
from ragtree_lab.graph.policies.forest import NAMESPACE, Forest
from ragtree_lab.graph.policies.waiting_line import FIFO, ORDERS
from ragtree_lab.simulation.policies import create_simulated_policy
from ragtree_lab.simulation.policies.belady import Belady


class Setting(NamedTuple):
    """A policy that manages ``cache_tokens`` tokens, and the ``order`` in which ``waiting`` prompts are served."""

    policy: str
    cache_tokens: int
    waiting: int = 0
    order: str = FIFO


def check(setting: Setting) -> None:
    """Raise UnknownPolicy, or ConfigError for an unknown order and for BELADY in another order than FIFO.

    Which prompt is next there would depend on what BELADY keeps.
    """
    if setting.order not in ORDERS:
        raise ConfigError(f"there is no order {setting.order!r}; choose one of {', '.join(ORDERS)}", "orders")
    if setting.policy != Belady.name:
        create_simulated_policy(setting.policy, Lookahead())
    elif setting.order != FIFO:
        raise ConfigError("BELADY needs to know the order of all prompts in advance", "orders")


def token_hit_rate(stream: Sequence[Forest], setting: Setting, cost: Callable[[int, int], float]) -> float:
    """The share of the tokens of all prompts' branches that was found.

    ``cost(cached, new)`` gives the seconds of a prefill. Raises what ``check`` does.
    """
    check(setting)
    lookahead = Lookahead()
    tree = BranchTree(_policy(stream, setting.policy, lookahead), setting.cache_tokens, cost)
    line = ORDERS[setting.order](tree, cost)
    found = served = 0
    arrivals = iter(enumerate(stream))
    while served < len(stream):
        while len(line) <= setting.waiting and (arrival := next(arrivals, None)) is not None:
            number, forest = arrival
            line.enter(str(number), forest)
            lookahead.enter(str(number), forest.keys)
        query_id, forest = line.leave()
        lookahead.leave(query_id)
        found += tree.found(forest.branches)
        tree.keep(NAMESPACE, forest.branches, forest.question_tokens)
        served += 1
    return found / sum(forest.tokens for forest in stream)


def _policy(stream: Sequence[Forest], name: str, lookahead: Lookahead) -> ReplacementPolicy:
    if name != Belady.name:
        return create_simulated_policy(name, lookahead)
    return Belady(lookahead, (forest.keys for forest in stream))
