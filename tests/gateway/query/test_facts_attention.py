"""How replies, metrics and events say how a prompt attended to its facts."""

import pytest

from gateway.wire.reuse import facts_attention, facts_fallback
from protocol.dependency import Branch, DependencyTrees
from protocol.generation import PrefillResult
from protocol.plans import Fallback, PrefillPlan
from protocol.prompts import Prompt

TREES = DependencyTrees(1, 1, (Branch(1, -1),))


def plan(paths: tuple[int, ...] = (0,), trees: DependencyTrees | None = None, why: Fallback | None = None):
    return PrefillPlan("query", "engine", "tenant", Prompt((), paths=paths), trees=trees, tree_fallback=why)


@pytest.mark.parametrize(
    ("planned", "in_trees", "attention", "fallback"),
    [
        (plan(()), False, None, None),
        (plan(), False, "self", None),
        (plan(why=Fallback.GATE), False, "self", Fallback.GATE),
        (plan(trees=TREES), True, "dependency", None),
        (plan(trees=TREES), False, "self", Fallback.FAILED),
    ],
)
def test_a_prefill_says_how_it_attended_to_facts(planned, in_trees, attention, fallback):
    prefill = PrefillResult(10, 0, 1.0, in_trees=in_trees)
    assert facts_attention(planned, prefill) == attention
    assert facts_fallback(planned, prefill) == fallback
