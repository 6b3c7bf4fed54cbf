"""Dependency trees inside a real vLLM, beside transformers, which is given the mask of brute-force ancestors."""

import asyncio
import random
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import pytest
import torch
from composed_prompts import DONATED, ComposedPrompts
from kv_plans import DISK, FIRST, GPU, HOST, SYSTEM, ask, held, kv_path, put, uncached_tokens

from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath, random_segment
from protocol.dependency import Branch, DependencyTrees, TreePositions, branch_keys
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

FRONT = len(SYSTEM.token_ids)
QUESTION = random_segment("why?", 21, SegmentKind.QUESTION)

# Two trees: one with branches of several depths, one of a root alone.
BRANCHES = (
    Branch(5, -1),
    Branch(3, 0),
    Branch(9, 1),
    Branch(2, 1),
    Branch(4, 3),
    Branch(7, 0),
    Branch(6, -1),
    Branch(40, -1),
    Branch(31, 7),
)
CHAIN = tuple(Branch(11, place - 1) for place in range(12))


def facts(branches: Sequence[Branch], name: str = "facts") -> Segment:
    """Random token ids for branches."""
    return random_segment(name, sum(branch.tokens for branch in branches), SegmentKind.QUESTION)


def random_trees() -> list[Branch]:
    """Trees of 60 branches, which are longer than two steps."""
    draws = random.Random(1)
    branches: list[Branch] = []
    path: list[int] = []
    for place in range(60):
        path = path[: draws.randrange(len(path) + 1)]
        branches.append(Branch(draws.randrange(1, 17), path[-1] if path else -1))
        path.append(place)
    return branches


def tree_plan(
    path: KvPath,
    branches: Sequence[Branch],
    segment: Segment | None = None,
    positions: TreePositions = TreePositions.PREORDER,
    *,
    source=GPU,
    kept=None,
    reuse: bool = True,
    front: int = FRONT,
) -> PrefillPlan:
    """A plan for a path, trees behind it, and a question."""
    segment = segment or facts(branches)
    plan = path.plan(QUESTION, source, kept)
    prompt = Prompt((*path.segments, segment, QUESTION))
    trees = DependencyTrees(path.tokens, front, tuple(branches), positions, reuse)
    return msgspec.structs.replace(plan, prompt=prompt, trees=trees)


def behind_trees(plan: PrefillPlan) -> PrefillPlan:
    """A plan with trees in front of its question."""
    *prefix, question = plan.prompt.segments
    trees = DependencyTrees(sum(len(segment.token_ids) for segment in prefix), FRONT, BRANCHES)
    return msgspec.structs.replace(plan, prompt=Prompt((*prefix, facts(BRANCHES), question)), trees=trees)


def ancestors(branches: Sequence[Branch], place: int) -> set[int]:
    """A branch's ancestors and itself."""
    found = {place}
    while branches[place].parent >= 0:
        place = branches[place].parent
        found.add(place)
    return found


def brute_force_mask(plan: PrefillPlan) -> torch.Tensor:
    """Which tokens of the prompt each one attends to, asked of each pair."""
    trees = plan.trees
    of_token = [place for place, branch in enumerate(trees.branches) for _ in range(branch.tokens)]
    total = plan.prompt.token_count
    mask = torch.zeros(total, total, dtype=torch.bool)
    for query in range(total):
        for key in range(query + 1):
            seen = True
            if trees.start <= query < trees.end:
                own = of_token[query - trees.start]
                if key < trees.start:
                    seen = key < trees.front
                else:
                    seen = of_token[key - trees.start] in ancestors(trees.branches, own)
            mask[query, key] = seen
    return mask


def depth_positions(plan: PrefillPlan) -> list[int]:
    """The positions of the prompt's tokens if each path stands alone behind the front."""
    trees = plan.trees
    positions = list(range(plan.prompt.token_count))
    starts = accumulate((branch.tokens for branch in trees.branches), initial=trees.start)
    for place, (start, branch) in enumerate(zip(starts, trees.branches, strict=False)):
        above = ancestors(trees.branches, place) - {place}
        first = trees.front + sum(trees.branches[other].tokens for other in above)
        positions[start : start + branch.tokens] = range(first, first + branch.tokens)
    return positions


async def assert_as_transformers(engine, tiny_model, plan: PrefillPlan) -> None:
    """The engine's answer has the tokens, and nearly the probabilities, of the masked model without any cache."""
    from tiny_models import continuation

    positions = depth_positions(plan) if plan.trees.positions is TreePositions.DEPTH else None
    expected = continuation(tiny_model, plan.prompt.token_ids, 6, brute_force_mask(plan), positions)
    generation = await generate(engine, plan, Sampling(6, logprobs=True))
    assert tuple(token.token_id for token in generation.logprobs) == expected.token_ids
    logprobs = [token.logprob for token in generation.logprobs]
    assert logprobs == pytest.approx(expected.logprobs, abs=1e-3)


@pytest.fixture
def system(path) -> KvPath:
    """The system prompt alone, in the test's namespace."""
    return kv_path((SYSTEM,), path.namespace)


@pytest.fixture
def behind_a_document(path) -> KvPath:
    """The system prompt and a document."""
    return kv_path((SYSTEM, FIRST), path.namespace)


class TestAnswers:
    @pytest.mark.parametrize("positions", TreePositions)
    @pytest.mark.parametrize("front", [0, 10, FRONT])
    async def test_the_mask_is_that_of_brute_force_ancestors(self, engine, tiny_model, system, positions, front):
        await put(engine, system, GPU)
        plan = tree_plan(system, BRANCHES, positions=positions, reuse=False, front=front)
        await assert_as_transformers(engine, tiny_model, plan)

    @pytest.mark.parametrize("positions", TreePositions)
    async def test_trees_behind_a_document_do_not_see_it(self, engine, tiny_model, behind_a_document, positions):
        await put(engine, behind_a_document, HOST)
        plan = tree_plan(behind_a_document, BRANCHES, positions=positions, reuse=False, source=HOST)
        await assert_as_transformers(engine, tiny_model, plan)

    async def test_random_trees_longer_than_a_step(self, engine, tiny_model, system):
        plan = tree_plan(system, random_trees(), source=None, reuse=False)
        await assert_as_transformers(engine, tiny_model, plan)

    async def test_a_chain_has_the_answer_of_causal_attention(self, engine, system):
        segment = facts(CHAIN)
        exact = await uncached_tokens(engine, kv_path((SYSTEM, segment)), "why?")
        for positions in TreePositions:
            answer = await ask(engine, tree_plan(system, CHAIN, segment, positions, source=None, reuse=False))
            assert answer.tokens == exact

    async def test_many_at_once_have_the_same_answers_as_one_by_one(self, engine, system):
        plans = [tree_plan(system, BRANCHES, facts(BRANCHES, str(n)), source=None, reuse=False) for n in range(6)]
        alone = [(await ask(engine, plan)).tokens for plan in plans]
        again = [msgspec.structs.replace(plan, query_id=f"{plan.query_id} again") for plan in plans]
        assert [answer.tokens for answer in await asyncio.gather(*(ask(engine, plan) for plan in again))] == alone


class TestReuse:
    async def test_a_hit_that_stays_in_place_is_no_cache(self, engine, system):
        segment = facts(BRANCHES, "in place")
        without = await ask(engine, tree_plan(system, BRANCHES, segment, source=None, reuse=False))
        first = await ask(engine, tree_plan(system, BRANCHES, segment, source=None))
        hit = await ask(engine, tree_plan(system, BRANCHES, segment, source=None))
        assert (first.prefill.composed_tokens, hit.prefill.composed_tokens) == (0, len(segment.token_ids))
        assert without.tokens == first.tokens == hit.tokens

    async def test_at_depth_positions_other_trees_and_documents_in_front_change_nothing(
        self, engine, tiny_model, system, behind_a_document
    ):
        await put(engine, behind_a_document, GPU)
        shared = facts(BRANCHES[7:], "shared").token_ids
        await ask(
            engine,
            tree_plan(
                system, [Branch(40, -1), Branch(31, 0)], Segment(SegmentKind.QUESTION, "", shared), TreePositions.DEPTH
            ),
        )
        whole = Segment(SegmentKind.QUESTION, "", (*facts(BRANCHES[:7]).token_ids, *shared))
        plan = tree_plan(behind_a_document, BRANCHES, whole, TreePositions.DEPTH)
        await assert_as_transformers(engine, tiny_model, plan)
        again = msgspec.structs.replace(plan, query_id="again")
        assert (await ask(engine, again)).prefill.composed_tokens == len(whole.token_ids)

    async def test_a_branch_behind_another_ancestor_is_no_hit(self, engine, system):
        segment = facts(CHAIN, "ancestors")
        await ask(engine, tree_plan(system, CHAIN, segment, source=None))
        other = Segment(SegmentKind.QUESTION, "", (777, *segment.token_ids[1:]))
        assert (await ask(engine, tree_plan(system, CHAIN, other, source=None))).prefill.composed_tokens == 0
        behind = Segment(SegmentKind.QUESTION, "", (*segment.token_ids[:22], 777, *segment.token_ids[23:]))
        assert (await ask(engine, tree_plan(system, CHAIN, behind, source=None))).prefill.composed_tokens == 22

    async def test_a_hit_that_moves_whole_and_sees_no_front_is_no_cache(self, engine, tiny_model, system):
        segment = facts(BRANCHES, "moved")
        await ask(engine, tree_plan(system, BRANCHES, segment, source=None, front=0))
        branches = (Branch(33, -1), *(Branch(b.tokens, b.parent + 1 if b.parent >= 0 else -1) for b in BRANCHES))
        behind = Segment(SegmentKind.QUESTION, "", (*random_segment("another", 33).token_ids, *segment.token_ids))
        await assert_as_transformers(engine, tiny_model, tree_plan(system, branches, behind, source=None, front=0))
        again = await ask(engine, tree_plan(system, branches, behind, source=None, front=0))
        assert again.prefill.composed_tokens == len(behind.token_ids)

    async def test_branches_that_a_plan_drops_are_computed_again(self, engine, system):
        segment = facts(BRANCHES, "dropped")
        first = tree_plan(system, BRANCHES, segment, source=None)
        await ask(engine, first)
        keys = branch_keys(first.namespace, first.trees, first.prompt.token_ids)
        other = tree_plan(system, CHAIN, source=None)
        await ask(
            engine, msgspec.structs.replace(other, trees=msgspec.structs.replace(other.trees, dropped=(keys[0],)))
        )
        # The first tree is gone, and the others are not.
        dropped = [place for place in range(len(BRANCHES)) if 0 in ancestors(BRANCHES, place)]
        left = len(segment.token_ids) - sum(BRANCHES[place].tokens for place in dropped)
        hit = await ask(engine, tree_plan(system, BRANCHES, segment, source=None))
        assert 0 < hit.prefill.composed_tokens == left

    async def test_hits_between_branches_that_take_several_steps(self, engine, tiny_model, system):
        """What several steps have computed is kept, and found on both sides of what is computed again."""
        first = tree_plan(system, random_trees(), facts(random_trees(), "long"), TreePositions.DEPTH, source=None)
        await assert_as_transformers(engine, tiny_model, first)
        keys = branch_keys(first.namespace, first.trees, first.prompt.token_ids)
        trees = msgspec.structs.replace(first.trees, dropped=tuple(keys[4::9]))
        some = msgspec.structs.replace(first, query_id="some are dropped", trees=trees)
        await assert_as_transformers(engine, tiny_model, some)
        answer = await ask(engine, msgspec.structs.replace(some, query_id="some are dropped again"))
        assert 0 < answer.prefill.composed_tokens < sum(branch.tokens for branch in random_trees())
        again = msgspec.structs.replace(first, query_id="again")
        await assert_as_transformers(engine, tiny_model, again)
        answer = await ask(engine, msgspec.structs.replace(first, query_id="and again"))
        assert answer.prefill.composed_tokens == sum(branch.tokens for branch in random_trees())

    async def test_another_namespace_has_no_hits(self, engine, system):
        segment = facts(BRANCHES, "tenants")
        await ask(engine, tree_plan(system, BRANCHES, segment, source=None))
        other = await ask(engine, tree_plan(kv_path((SYSTEM,)), BRANCHES, segment, source=None))
        assert other.prefill.composed_tokens == 0

    async def test_a_deletion_ends_the_hits_of_what_no_other_chunk_states(self, engine, system):
        # The first root is stated by two chunks, what is below it by one of them, and the other trees by neither.
        stated = [
            ("a", "b") if place == 0 else ("a",) if 0 in ancestors(BRANCHES, place) else ("c",)
            for place in range(len(BRANCHES))
        ]
        branches = [msgspec.structs.replace(branch, stated_by=by) for branch, by in zip(BRANCHES, stated, strict=True)]
        segment = facts(branches, "deleted")
        await ask(engine, tree_plan(system, branches, segment, source=None))
        assert await engine.carry_out(Orders(forget=((system.namespace, "a"),))) == ()
        hit = await ask(engine, tree_plan(system, branches, segment, source=None))
        left = [branch.tokens for branch, by in zip(BRANCHES, stated, strict=True) if by != ("a",)]
        assert 0 < hit.prefill.composed_tokens == sum(left) < len(segment.token_ids)
        everything = tuple((system.namespace, content) for content in "abc")
        assert await engine.carry_out(Orders(forget=everything)) == ()
        assert (await ask(engine, tree_plan(system, branches, segment, source=None))).prefill.composed_tokens == 0

    async def test_a_deletion_in_the_gpu_tier_alone_ends_hits(self, engine, system):
        """An instance that missed a deletion is told to carry it out in its own memory."""
        segment = facts(BRANCHES, "missed")
        plan = tree_plan(system, BRANCHES, segment, source=None)
        await ask(engine, plan)
        assert await engine.carry_out(Orders(everything=True, tiers=(GPU,))) == ()
        assert (await ask(engine, plan)).prefill.composed_tokens == 0


class TestIsolation:
    async def test_an_exact_request_behind_it_is_unchanged_and_nothing_of_trees_is_found(self, engine, path):
        exact = await uncached_tokens(engine, path, "why?")
        await put(engine, path, GPU)
        before = {tier: await held(engine, tier) for tier in (GPU, HOST, DISK)}
        await ask(engine, tree_plan(path, BRANCHES))
        answer = await ask(engine, path.plan("why?", GPU, None))
        assert (answer.tokens, answer.prefill.cached_tokens) == (exact, path.tokens)
        assert {tier: await held(engine, tier) for tier in (GPU, HOST, DISK)} == before

    async def test_nodes_in_front_of_trees_are_computed_and_kept(self, engine, path):
        exact = await uncached_tokens(engine, path, "why?")
        await ask(engine, tree_plan(path, BRANCHES, source=None, kept=GPU))
        answer = await ask(engine, path.plan("why?", GPU, None))
        assert (answer.tokens, answer.prefill.cached_tokens) == (exact, path.tokens)


class TestBehindComposedDocuments:
    async def test_documents_that_are_computed_again_whole_and_trees_have_the_answer_of_no_cache(
        self, engine, tiny_model, path
    ):
        prompts = ComposedPrompts(path.namespace, GPU)
        await prompts.put(engine)
        plan = behind_trees(prompts.plan("why?", 1.0))
        await assert_as_transformers(engine, tiny_model, plan)
        answer = await ask(engine, msgspec.structs.replace(plan, query_id="again"))
        tree_tokens = sum(branch.tokens for branch in BRANCHES)
        assert answer.prefill.composed_tokens == tree_tokens
        assert answer.prefill.recomputed_tokens == DONATED

    async def test_documents_that_deviate_too_much_are_computed_and_trees_are_composed(self, engine, tiny_model, path):
        prompts = ComposedPrompts(path.namespace, GPU)
        await prompts.put(engine)
        plan = behind_trees(prompts.plan("why?", 0.5, bound=1e-6))
        await assert_as_transformers(engine, tiny_model, plan)
        answer = await ask(engine, msgspec.structs.replace(plan, query_id="again"))
        assert answer.prefill.deviation > 1e-6
        assert answer.prefill.recomputed_tokens == 0
        assert answer.prefill.composed_tokens == sum(branch.tokens for branch in BRANCHES)


class TestFaults:
    async def test_a_front_that_is_gone_is_computed(self, engine, path):
        expected = await ask(engine, tree_plan(kv_path(path.segments), BRANCHES, source=None, reuse=False))
        await put(engine, path, HOST)
        assert await engine.carry_out(Orders(path.moves(HOST, None)[:1])) == ()
        answer = await ask(engine, tree_plan(path, BRANCHES, source=HOST, reuse=False))
        assert answer.tokens == expected.tokens
        assert answer.prefill.lost == (LostCopy(path.keys[-1], HOST),)

    async def test_trees_that_are_none_are_served_under_causal_attention(self, engine, system):
        segment = facts(BRANCHES, "broken")
        plan = tree_plan(system, (Branch(7, 3), *BRANCHES[1:]), segment, source=None)
        answer = await ask(engine, plan)
        assert answer.tokens == await uncached_tokens(engine, kv_path((SYSTEM, segment)), "why?")
        assert answer.prefill.composed_tokens == 0
