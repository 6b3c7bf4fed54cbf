"""A seed repeats a sampled answer, wherever its prompt's KV comes from, in how many steps, and beside whatever runs."""

import asyncio
import contextlib

import pytest
from composed_prompts import ComposedPrompts
from kv_plans import DISK, GPU, HOST, kv_path, put

from examine.measuring.engines import generate
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.plans import PrefillPlan

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SAMPLED = Sampling(12, temperature=1.2, seed=42, logprobs=True)


async def sampled(engine: VllmEngine, plan: PrefillPlan, sampling: Sampling = SAMPLED) -> tuple[int, ...]:
    """The tokens of a sampled answer."""
    return tuple(token.token_id for token in (await generate(engine, plan, sampling)).logprobs)


async def cold(engine: VllmEngine, path, sampling: Sampling = SAMPLED) -> tuple[int, ...]:
    """The answer of a prefill of several steps: nothing is cached in a new namespace."""
    return await sampled(engine, kv_path(path.segments).plan("why?", None, None), sampling)


async def test_a_prompt_of_several_steps_has_the_answer_of_its_seed(engine, path):
    first = await cold(engine, path)
    assert await cold(engine, path) == first
    assert await cold(engine, path, Sampling(12, temperature=1.2, seed=43, logprobs=True)) != first
    await engine.ready()


@pytest.mark.parametrize("tier", [GPU, HOST, DISK])
async def test_the_tier_of_a_prompts_kv_changes_no_sampled_answer(engine, path, tier):
    await put(engine, path, tier)
    assert await sampled(engine, path.plan("why?", tier, GPU)) == await cold(engine, path)


async def test_a_composed_prompt_has_the_answer_of_its_seed(engine, path):
    prompts = ComposedPrompts(path.namespace, GPU)
    await prompts.put(engine)
    assert await sampled(engine, prompts.plan("why?", 1.0)) == await cold(engine, prompts.whole)
    shares = [await sampled(engine, prompts.plan("why?", 0.3)) for _ in range(2)]
    assert shares[0] == shares[1]


async def test_other_requests_change_no_sampled_answer(engine, path):
    alone = [await cold(engine, path, Sampling(12, 1.2, seed=seed, logprobs=True)) for seed in range(3)]
    unseeded = asyncio.create_task(cold(engine, path, Sampling(40, 1.2, logprobs=True)))
    together = await asyncio.gather(
        *(cold(engine, path, Sampling(12, 1.2, seed=seed, logprobs=True)) for seed in range(3))
    )
    await unseeded
    assert together == alone
    assert len(set(alone)) == 3


async def test_a_preempted_answer_goes_on_as_its_seed_says(engine, path, preemptions):
    longer = Sampling(40, 1.2, seed=7, ignore_eos=True, logprobs=True)
    expected = await cold(engine, path, longer)
    before = preemptions()
    # On a busy machine an answer may end before it can be preempted.
    for _ in range(5):
        assert await preempted(engine, path, longer) == expected
        if preemptions() > before:
            return
    pytest.fail("no answer was preempted")


async def preempted(engine, path, sampling) -> tuple[int, ...]:
    """The tokens of an answer whose request is preempted after its first token, if it still runs then."""
    tokens: list[int] = []
    plan = kv_path(path.segments).plan("why?", None, None)
    async with contextlib.aclosing(engine.stream(plan, sampling)) as stream:
        async for step in stream:
            if not tokens:
                # With asynchronous steps it may fail, because blocks are still in use, but all requests are preempted.
                with contextlib.suppress(Exception):
                    await engine._parts().requests.empty_prefix_cache()
            tokens += [token.token_id for token in step.logprobs]
    return tuple(tokens)


@pytest.mark.parametrize("seed", [0, -1, -2, 2**53 - 1 + 15, -(2**53) + 1])
async def test_every_seed_is_one(engine, path, seed):
    sampling = Sampling(8, temperature=2.0, seed=seed, ignore_eos=True, logprobs=True)
    assert await cold(engine, path, sampling) == await cold(engine, path, sampling)


async def test_a_seed_keeps_to_the_likely_tokens(engine, path):
    """To those that top_k, top_p and min_p leave, and in their proportions."""
    greedy = await cold(engine, path, Sampling(8, logprobs=True))
    for only_the_best in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert await cold(engine, path, Sampling(8, 2.0, seed=3, logprobs=True, **only_the_best)) == greedy
    of_two = [Sampling(1, 2.0, top_k=2, seed=seed, logprobs=True) for seed in range(9)]
    assert len({await cold(engine, path, sampling) for sampling in of_two}) == 2
