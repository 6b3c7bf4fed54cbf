"""Composed prompts inside a real vLLM: what is computed again is exact, and no other request ever sees the rest."""

import asyncio
import contextlib

import msgspec
import pytest
import pytest_asyncio
from composed_prompts import DONATED, ComposedPrompts, of_lab
from kv_plans import DISK, FIRST, GPU, HOST, SYSTEM, ask, held, kv_path, uncached_tokens, until_held

from examine.measuring.kv_paths import random_segment
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders
from protocol.plans import Donor, Recompute

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", params=[GPU, HOST, DISK])
async def prompts(engine, path, request) -> ComposedPrompts:
    """The three documents, put into a tier."""
    made = ComposedPrompts(path.namespace, request.param)
    await made.put(engine)
    return made


class TestAnswers:
    async def test_a_prompt_that_is_computed_again_whole_has_the_exact_answer(self, engine, prompts):
        answer = await ask(engine, prompts.plan("why?", 1.0))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.loaded == {prompts.tier: 27 + 170}
        assert (answer.prefill.composed_tokens, answer.prefill.recomputed_tokens) == (0, DONATED)

    @pytest.mark.parametrize("method", ["query", *of_lab("cacheclip", "cacheblend", "epic", "random")])
    async def test_no_more_than_the_share_is_computed_again(self, engine, prompts, method):
        answer = await ask(engine, prompts.plan("why?", 0.3, method))
        recomputed = answer.prefill.recomputed_tokens
        assert 0.2 * DONATED < recomputed <= 0.3 * DONATED
        assert answer.prefill.composed_tokens == DONATED - recomputed
        assert answer.prefill.lost == ()

    @pytest.mark.parametrize("method", ["none", *of_lab("ape", "cacheclip-strict")])
    async def test_direct_reuse_computes_the_question_alone(self, engine, prompts, method):
        answer = await ask(engine, prompts.plan("why?", 0.0, method))
        assert answer.prefill.composed_tokens == DONATED
        assert answer.prefill.prompt_tokens == prompts.whole.tokens + 21

    @pytest.mark.parametrize("given", [(1,), (2,)])
    async def test_documents_without_a_donor_are_computed(self, engine, prompts, given):
        answer = await ask(engine, prompts.plan("why?", 1.0, given=given))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.recomputed_tokens == {1: 113, 2: 70}[given[0]]

    async def test_what_other_requests_left_behind_does_not_change_the_selection(self, engine, prompts, path):
        # The second document has no donor, so it is computed after the selection, whose question stands behind it.
        answers = []
        for number in range(3):
            other = kv_path([random_segment(f"other {number} {part}", 230) for part in range(4)], path.namespace)
            await ask(engine, other.plan("to fill the blocks", None, None), max_tokens=1)
            answers.append(await ask(engine, prompts.plan("why?", 0.3, given=(2,))))
        assert len({answer.prefill.deviation for answer in answers}) == 1
        assert len({tuple(answer.tokens) for answer in answers}) == 1

    async def test_a_document_within_one_page_is_composed(self, engine, path):
        note = random_segment("a note", 4)
        front = kv_path((SYSTEM, FIRST), path.namespace)
        own = kv_path((SYSTEM, note), path.namespace, front.page_count)
        whole = kv_path((SYSTEM, FIRST, note), path.namespace)
        for each in (front, own):
            await ask(engine, each.plan("to compute it", None, GPU), max_tokens=1)
        plan = whole.plan("why?", [GPU, GPU, None], None)
        donated = msgspec.structs.replace(plan.nodes[2], donor=Donor(own.keys[1], GPU, 27))
        nodes = (*plan.nodes[:2], donated)
        answer = await ask(engine, msgspec.structs.replace(plan, nodes=nodes, recompute=Recompute("none", 0.0)))
        assert answer.prefill.composed_tokens == 4

    @pytest.mark.parametrize("method", of_lab("ape"))
    async def test_an_attention_temperature_changes_the_answer_and_nothing_that_others_use(
        self, engine, prompts, method
    ):
        direct = await ask(engine, prompts.plan("why?", 0.0, "none"))
        sharpened = await ask(engine, prompts.plan("why?", 0.0, method))
        assert sharpened.tokens != direct.tokens
        assert (await ask(engine, prompts.plan("why?", 0.0, "none"))).tokens == direct.tokens

    async def test_many_at_once_have_the_same_answers_as_one_by_one(self, engine, prompts):
        plans = {f"{question} {share}": (question, share) for question in ("why?", "who?") for share in (0.0, 0.3, 1.0)}
        alone = {name: (await ask(engine, prompts.plan(*plan))).tokens for name, plan in plans.items()}
        answers = await asyncio.gather(*(ask(engine, prompts.plan(*plan)) for plan in plans.values()))
        assert {name: answer.tokens for name, answer in zip(plans, answers, strict=True)} == alone


@pytest.mark.parametrize("kept", [GPU, HOST])
class TestPrefillInFront:
    async def test_what_it_computes_is_kept_and_donates(self, engine, prompts, kept):
        answer = await ask(engine, prompts.plan_behind_another("why?", 1.0, kept))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.lost == ()
        assert answer.prefill.loaded == {prompts.tier: 27 + 170}
        assert answer.prefill.recomputed_tokens == DONATED
        await until_held(engine, prompts.beside, kept)
        again = await ask(engine, prompts.beside.plan("why?", [GPU, GPU, kept], None))
        assert (again.prefill.cached_tokens, again.prefill.lost) == (prompts.beside.tokens, ())
        assert again.tokens == await uncached_tokens(engine, prompts.beside, "why?")

    async def test_what_it_computes_counts_as_computed(self, engine, prompts, kept):
        prefill = (await ask(engine, prompts.plan_behind_another("why?", 0.3, kept))).prefill
        assert prefill.composed_tokens == 113 - prefill.recomputed_tokens
        assert prefill.computed_tokens == 70 + 21 + prefill.recomputed_tokens

    async def test_a_plan_that_ends_in_it_keeps_what_it_computed(self, engine, prompts, kept):
        plan = prompts.plan_behind_another("why?", 0.3, kept)
        assert plan.first is not None
        first = msgspec.structs.replace(plan.first, speculative=True)
        plan = msgspec.structs.replace(plan, first=first, speculative=True)
        stream = engine.stream(plan, Sampling(max_tokens=8))
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await engine.end(plan.query_id)
        step = await task
        assert (step.tokens, step.finish_reason) == (0, "ended")
        assert step.prefill is None or step.prefill.prompt_tokens <= prompts.beside.tokens
        await stream.aclose()

    async def test_a_plan_that_ends_before_it_does_nothing(self, engine, prompts, kept):
        plan = prompts.plan_behind_another("why?", 0.3, kept)
        await engine.end(plan.query_id)
        steps = [step async for step in engine.stream(plan, Sampling(max_tokens=8))]
        assert [(step.prefill, step.finish_reason) for step in steps] == [(None, "ended")]


class TestIsolation:
    async def test_nothing_composed_is_ever_found(self, engine, prompts):
        before = {tier: await held(engine, tier) for tier in (GPU, HOST, DISK)}
        exact = await uncached_tokens(engine, prompts.whole, "why?")
        for share in (0.0, 0.5):
            await ask(engine, prompts.plan("why?", share))
        # A plan without nodes finds what the engine's own prefix cache has in this namespace.
        plain = msgspec.structs.replace(prompts.whole.plan("why?", None, None), nodes=())
        answer = await ask(engine, plain)
        assert answer.tokens == exact
        assert answer.prefill.cached_tokens <= 27 + 170
        assert {tier: await held(engine, tier) for tier in (GPU, HOST, DISK)} == before


class TestFaults:
    async def test_a_donor_that_is_gone_is_computed_and_reported(self, engine, prompts):
        if prompts.tier is GPU:
            pytest.skip("the engine knows what it holds")
        gone = prompts.own[1]
        await engine.carry_out(Orders((gone.moves(prompts.tier, None)[0],)))
        answer = await ask(engine, prompts.plan("why?", 1.0))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.lost == (LostCopy(gone.keys[1], prompts.tier),)
        assert answer.prefill.recomputed_tokens == 70

    async def test_a_front_that_is_gone_is_computed(self, engine, prompts):
        if prompts.tier is GPU:
            pytest.skip("the engine knows what it holds")
        front = prompts.own[0]
        await engine.carry_out(Orders((front.moves(prompts.tier, None)[0],)))
        answer = await ask(engine, prompts.plan("why?", 1.0))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.loaded == {prompts.tier: 27}
        assert answer.prefill.recomputed_tokens == DONATED

    async def test_an_unknown_method_is_served_exactly(self, engine, prompts):
        answer = await ask(engine, prompts.plan("why?", 0.5, "tea leaves"))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert answer.prefill.composed_tokens == 0

    async def test_a_prompt_that_deviates_more_than_its_bound_is_computed(self, engine, prompts):
        within = (await ask(engine, prompts.plan("why?", 0.5))).prefill.deviation
        assert 0.0 < within < 2.0
        answer = await ask(engine, prompts.plan("why?", 0.5, bound=1.01 * within))
        assert answer.prefill.recomputed_tokens > 0
        answer = await ask(engine, prompts.plan("why?", 0.5, bound=0.99 * within))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert (answer.prefill.composed_tokens, answer.prefill.recomputed_tokens) == (0, 0)
        assert answer.prefill.deviation == within
        # The front stays, but for a block that it shares with what was composed.
        assert 150 < answer.prefill.loaded[prompts.tier] <= 27 + 170

    async def test_requests_that_leave_while_they_are_composed_leave_nothing_behind(self, engine, prompts):
        before = await held(engine, GPU)
        for steps in range(6):
            stream = engine.stream(prompts.plan("why?", 0.5), Sampling(max_tokens=8))
            task = asyncio.ensure_future(anext(stream))
            for _ in range(3 * steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await stream.aclose()
        answer = await ask(engine, prompts.plan("why?", 1.0))
        assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
        assert await held(engine, GPU) == before
