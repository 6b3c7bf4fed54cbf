"""Facts in trees: when plans have them so, and why not."""

import msgspec
import pytest
from controller_under_test import Clock, ask, checked_controllers, report

from cachectl.runtime.composing import Gate, TreeRule
from protocol.dependency import Branch, DependencyTrees, DepPrompt, GraphAttention, branch_keys
from protocol.gate import DEPENDENCY_AT_DEPTH, GateReport
from protocol.generation import ComposingInfo
from protocol.plans import AdmissionRequest, Fallback, Reuse
from protocol.prompts import Segment, SegmentKind

BRANCHES = (Branch(2, -1), Branch(3, 0))
FACTS = DepPrompt((5, 6, 7, 8, 9), BRANCHES, (2,))
PASSED = Gate([GateReport("", "model", DEPENDENCY_AT_DEPTH, 0.0, True, "", (), 1.0, 0.0, 0.0, 0.0)])


def with_facts(request: AdmissionRequest, reuse: Reuse | None = None, facts: DepPrompt = FACTS) -> AdmissionRequest:
    """The request with facts in front of its question."""
    *front, question = request.prompt.segments
    told = Segment(SegmentKind.QUESTION, "told", tuple(range(20)))
    prompt = msgspec.structs.replace(request.prompt, segments=(*front, told, question), facts=facts, paths=(0,))
    return msgspec.structs.replace(request, prompt=prompt, reuse=reuse)


@pytest.mark.parametrize(
    ("attention", "gate", "possible", "reuse", "fallback"),
    [
        (GraphAttention.DEPENDENCY, Gate(), True, None, None),
        (GraphAttention.DEPENDENCY, Gate(), False, None, Fallback.MODEL),
        (GraphAttention.AUTO, Gate(), True, None, Fallback.GATE),
        (GraphAttention.AUTO, PASSED, True, Reuse.COMPOSED, None),
        (GraphAttention.AUTO, PASSED, False, None, Fallback.MODEL),
    ],
)
def test_facts_stand_in_trees_or_the_rule_says_why_not(attention, gate, possible, reuse, fallback):
    rule = TreeRule(attention, gate, possible=possible)
    request = with_facts(ask("a", "AB", system="s"), reuse)
    assert rule.fallback(request) == fallback
    assert (rule.applied(request).prompt.trees is not None) == (fallback is None)
    assert rule.fallback(rule.applied(request)) == fallback


@pytest.mark.parametrize(
    ("attention", "reuse"), [(GraphAttention.SELF, None), (GraphAttention.DEPENDENCY, Reuse.EXACT)]
)
def test_who_does_not_ask_for_trees_gets_every_path_in_full_without_a_reason(attention, reuse):
    rule = TreeRule(attention, PASSED, possible=True)
    request = with_facts(ask("a", "AB", system="s"), reuse)
    assert rule.applied(request) is request
    assert rule.fallback(request) is None


def test_a_prompt_without_facts_has_no_trees_and_no_reason():
    rule = TreeRule(GraphAttention.DEPENDENCY, Gate(), possible=False)
    assert rule.applied(ask("a", "AB")) == ask("a", "AB")
    assert rule.fallback(ask("a", "AB")) is None


async def test_plans_have_the_trees_behind_their_nodes_which_are_kept_as_ever():
    composing = ComposingInfo(0.0, ("query",))
    with checked_controllers(Clock(), composing=composing, graph_attention=GraphAttention.DEPENDENCY) as build:
        controller = build()
        plan = await controller.admit(with_facts(ask("a", "AB", system="s")))
        front = sum(node.tokens for node in plan.nodes)
        assert plan.trees == DependencyTrees(front, front // 3, BRANCHES)
        assert plan.prompt.facts is None
        assert plan.tree_fallback is None
        assert all(node.kept is not None for node in plan.nodes)
        await controller.prefilled("a")
        await controller.complete(report("a"))
        again = await controller.admit(with_facts(ask("b", "AB", system="s")))
        assert [node.source for node in again.nodes] == [node.kept for node in plan.nodes]
        await controller.complete(report("b"))


async def test_plans_tell_engines_which_branches_leave_for_theirs():
    composing = ComposingInfo(0.0, ("query",), branch_tokens=8)
    others = DepPrompt((15, 16, 17, 18, 19), BRANCHES, (2,))
    settings = {"graph_attention": GraphAttention.DEPENDENCY, "policy": "LRU"}
    with checked_controllers(Clock(), composing=composing, **settings) as build:
        controller = build()
        plans = []
        for query_id, facts in (("a", FACTS), ("b", others), ("c", others), ("d", FACTS)):
            plans.append(await controller.admit(with_facts(ask(query_id, ""), facts=facts)))
            await controller.prefilled(query_id)
            await controller.complete(report(query_id))
        (root, leaf), (other_root, other_leaf) = (
            branch_keys(plan.namespace, plan.trees, plan.prompt.token_ids) for plan in plans[:2]
        )
        # 10 tokens in 8: the leaf of 3 leaves for the other tree, and the other one for this tree.
        assert [plan.trees.dropped for plan in plans] == [(), (leaf,), (), (other_leaf,)]
        assert root != other_root


def test_a_verdict_on_other_positions_does_not_count():
    moved = Gate([msgspec.structs.replace(report, method="dependency-preorder") for report in PASSED.reports])
    rule = TreeRule(GraphAttention.AUTO, moved, possible=True)
    assert rule.fallback(with_facts(ask("a", "AB"))) is Fallback.GATE


async def test_plans_of_an_engine_without_trees_say_so():
    composing = ComposingInfo(0.0, ("query",), "layer 0 has sinks")
    with checked_controllers(Clock(), composing=composing, graph_attention=GraphAttention.DEPENDENCY) as build:
        controller = build()
        plan = await controller.admit(with_facts(ask("a", "AB")))
        assert (plan.trees, plan.tree_fallback) == (None, Fallback.MODEL)
        assert plan.prompt.facts is None
        await controller.complete(report("a"))
