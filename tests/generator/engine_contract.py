"""Tests of the engine contract (generator/engines/engine.py), which every implementation runs."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from uuid import uuid4

import pytest
from prompt_inputs import document, user

from generator.engines.engine import Engine
from generator.prompts.layout import SegmentLayout
from protocol.errors import EngineDied, EngineNotReady
from protocol.generation import GenerationStep, Sampling
from protocol.plans import PrefillPlan

LONG = 200
"""Tokens of an answer that no test reads to its end."""

STORY = "Once there was a small river that ran down from the hills to the sea, and every day it passed the old mill. "


def plan(layout: SegmentLayout, text: str = STORY * 4, question: str = "Go on.", namespace: str = "") -> PrefillPlan:
    """A plan under a new namespace, so that tests do not find each other's prefixes in the cache."""
    prompt = layout.lay_out([user(question)], [document(text)], LONG)
    return PrefillPlan(uuid4().hex, "here", namespace or uuid4().hex, prompt)


async def steps_of(engine: Engine, of: PrefillPlan, sampling: Sampling) -> list[GenerationStep]:
    async with aclosing(engine.stream(of, sampling)) as stream:
        return [step async for step in stream]


def text_of(steps: list[GenerationStep]) -> str:
    return "".join(step.text for step in steps)


class EngineContract:
    """Needs three fixtures: a started ``engine``, its prompt ``layout``, and ``new_engine``, which creates another."""

    async def test_the_first_step_has_the_prefill_and_the_last_one_the_finish_reason(self, engine, layout):
        prefilled = plan(layout)
        steps = await steps_of(engine, prefilled, Sampling(max_tokens=5))
        assert len(steps) > 1
        assert [step.prefill is not None for step in steps] == [True] + [False] * (len(steps) - 1)
        assert [step.finish_reason is not None for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[0].prefill.prompt_tokens == prefilled.prompt.token_count
        assert steps[0].prefill.cached_tokens == 0
        assert steps[0].prefill.prefill_ms > 0

    async def test_a_single_step_has_prefill_and_finish_reason(self, engine, layout):
        (step,) = await steps_of(engine, plan(layout), Sampling(max_tokens=1))
        assert step.tokens == 1
        assert step.prefill is not None
        assert step.finish_reason == "length"

    @pytest.mark.parametrize("max_tokens", [2, 7])
    async def test_max_tokens_bounds_the_answer(self, engine, layout, max_tokens):
        steps = await steps_of(engine, plan(layout), Sampling(max_tokens=max_tokens))
        assert sum(step.tokens for step in steps) == max_tokens
        assert steps[-1].finish_reason == "length"
        assert text_of(steps)

    async def test_greedy_answers_are_repeatable(self, engine, layout):
        answers = [text_of(await steps_of(engine, plan(layout), Sampling(max_tokens=8))) for _ in range(2)]
        assert answers[0]
        assert answers[0] == answers[1]

    async def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(self, engine, layout):
        free = text_of(await steps_of(engine, plan(layout), Sampling(max_tokens=16)))
        stop = free.split()[2]
        steps = await steps_of(engine, plan(layout), Sampling(max_tokens=16, stop=(stop,)))
        assert text_of(steps) == free[: free.index(stop)]
        assert steps[-1].finish_reason == "stop"

    async def test_closing_a_stream_frees_its_slot(self, engine, layout):
        for _ in range(3):
            async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=LONG))) as stream:
                assert (await anext(stream)).finish_reason is None
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_cancelling_a_stream_during_its_prefill_frees_its_slot(self, engine, layout):
        for _ in range(3):
            task = asyncio.create_task(steps_of(engine, plan(layout), Sampling(max_tokens=LONG)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_closing_a_stream_that_was_never_read_does_nothing(self, engine, layout):
        await engine.stream(plan(layout), Sampling(max_tokens=LONG)).aclose()
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_two_streams_run_concurrently(self, engine, layout):
        both = asyncio.Barrier(2)

        async def read(stream: AsyncGenerator[GenerationStep, None]) -> int:
            async with aclosing(stream):
                tokens = (await anext(stream)).tokens
                # Both streams pass only when each has begun and neither has ended.
                await both.wait()
                return tokens + sum([step.tokens async for step in stream])

        sampling = Sampling(max_tokens=12)
        async with asyncio.timeout(60):
            counts = await asyncio.gather(*(read(engine.stream(plan(layout), sampling)) for _ in range(2)))
        assert counts == [12, 12]

    async def test_a_probe_of_more_new_tokens_takes_longer(self, engine):
        few, many = await engine.probe_prefill(0, 32), await engine.probe_prefill(0, 384)
        assert (few.cached_tokens, few.new_tokens) == (0, 32)
        assert (many.cached_tokens, many.new_tokens) == (0, 384)
        assert 0 < few.seconds < many.seconds

    async def test_a_started_engine_is_ready_and_has_info(self, engine):
        await engine.ready()
        info = await engine.info()
        assert info.model
        assert info.max_model_len > 0

    async def test_an_engine_is_not_ready_before_its_start(self, new_engine: Callable[[], Engine], layout):
        unstarted = new_engine()
        with pytest.raises(EngineNotReady):
            await unstarted.ready()
        with pytest.raises(EngineNotReady):
            await anext(unstarted.stream(plan(layout), Sampling(max_tokens=1)))
        with pytest.raises(EngineNotReady):
            await unstarted.probe_prefill(0, 8)
        await unstarted.close()


async def assert_closing_ends_streams(engine: Engine, layout: SegmentLayout) -> None:
    """Close a started engine, and assert that its running streams end and new ones are refused."""
    async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=LONG))) as stream:
        await anext(stream)
        await engine.close()
        async with asyncio.timeout(30):
            with pytest.raises(EngineDied):
                async for _ in stream:
                    pass
    with pytest.raises(EngineNotReady):
        await engine.ready()
    with pytest.raises(EngineNotReady):
        await anext(engine.stream(plan(layout), Sampling(max_tokens=1)))
    await engine.close()
