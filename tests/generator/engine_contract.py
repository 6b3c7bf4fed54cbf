"""What every engine promises (generator/engines/engine.py), as tests that each implementation runs."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from uuid import uuid4

import pytest
from blake3 import blake3

from generator.engines.engine import Engine
from generator.prompts.layout import SegmentLayout
from protocol.errors import EngineDied, EngineNotReady
from protocol.generation import GenerationStep, Sampling
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage
from protocol.retrieval import Chunk

LONG = 200
"""Tokens of an answer that nobody waits for the end of."""

STORY = "Once there was a small river that ran down from the hills to the sea, and every day it passed the old mill. "


def document(text: str) -> Chunk:
    return Chunk("c", "d", "d.txt", 0, text, blake3(text.encode()).hexdigest())


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def plan(layout: SegmentLayout, text: str = STORY * 4, question: str = "Go on.", namespace: str = "") -> PrefillPlan:
    """A plan under a namespace of its own, so that no test finds another's prefix in the cache."""
    prompt = layout.lay_out([user(question)], [document(text)], LONG)
    return PrefillPlan(uuid4().hex, "here", namespace or uuid4().hex, prompt)


async def steps_of(engine: Engine, of: PrefillPlan, sampling: Sampling) -> list[GenerationStep]:
    async with aclosing(engine.stream(of, sampling)) as stream:
        return [step async for step in stream]


def text_of(steps: list[GenerationStep]) -> str:
    return "".join(step.text for step in steps)


class EngineContract:
    """Needs fixtures: ``engine``, started; ``layout``, its prompts; ``new_engine``, which makes one not started."""

    async def test_the_first_step_carries_the_prefill_and_the_last_one_the_reason(self, engine, layout):
        prefilled = plan(layout)
        steps = await steps_of(engine, prefilled, Sampling(max_tokens=5))
        assert len(steps) > 1
        assert [step.prefill is not None for step in steps] == [True] + [False] * (len(steps) - 1)
        assert [step.finish_reason is not None for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[0].prefill.prompt_tokens == prefilled.prompt.token_count
        assert steps[0].prefill.cached_tokens == 0
        assert steps[0].prefill.prefill_ms > 0

    async def test_one_step_may_be_first_and_last(self, engine, layout):
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

    async def test_greedy_answers_are_the_same_each_time(self, engine, layout):
        answers = [text_of(await steps_of(engine, plan(layout), Sampling(max_tokens=8))) for _ in range(2)]
        assert answers[0]
        assert answers[0] == answers[1]

    async def test_a_stop_string_ends_the_answer_and_is_not_in_it(self, engine, layout):
        free = text_of(await steps_of(engine, plan(layout), Sampling(max_tokens=16)))
        stop = free.split()[2]
        steps = await steps_of(engine, plan(layout), Sampling(max_tokens=16, stop=(stop,)))
        assert text_of(steps) == free[: free.index(stop)]
        assert steps[-1].finish_reason == "stop"

    async def test_a_closed_stream_makes_room_for_the_next(self, engine, layout):
        for _ in range(3):
            async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=LONG))) as stream:
                assert (await anext(stream)).finish_reason is None
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_so_does_one_that_is_cancelled_in_its_prefill(self, engine, layout):
        for _ in range(3):
            task = asyncio.create_task(steps_of(engine, plan(layout), Sampling(max_tokens=LONG)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_a_stream_that_nobody_began_costs_nothing(self, engine, layout):
        await engine.stream(plan(layout), Sampling(max_tokens=LONG)).aclose()
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_two_streams_run_side_by_side(self, engine, layout):
        both = asyncio.Barrier(2)

        async def read(stream: AsyncGenerator[GenerationStep, None]) -> int:
            async with aclosing(stream):
                tokens = (await anext(stream)).tokens
                # Passed only when each has begun and neither has ended.
                await both.wait()
                return tokens + sum([step.tokens async for step in stream])

        sampling = Sampling(max_tokens=12)
        async with asyncio.timeout(60):
            counts = await asyncio.gather(*(read(engine.stream(plan(layout), sampling)) for _ in range(2)))
        assert counts == [12, 12]

    async def test_a_probe_costs_more_the_more_is_new(self, engine):
        few, many = await engine.probe_prefill(0, 32), await engine.probe_prefill(0, 384)
        assert (few.cached_tokens, few.new_tokens) == (0, 32)
        assert (many.cached_tokens, many.new_tokens) == (0, 384)
        assert 0 < few.seconds < many.seconds

    async def test_it_is_ready_and_says_what_it_serves(self, engine):
        await engine.ready()
        info = await engine.info()
        assert info.model
        assert info.max_model_len > 0

    async def test_before_its_start_it_is_not_ready(self, new_engine: Callable[[], Engine], layout):
        unstarted = new_engine()
        with pytest.raises(EngineNotReady):
            await unstarted.ready()
        with pytest.raises(EngineNotReady):
            await anext(unstarted.stream(plan(layout), Sampling(max_tokens=1)))
        with pytest.raises(EngineNotReady):
            await unstarted.probe_prefill(0, 8)
        await unstarted.close()

    async def test_closing_ends_what_runs_and_what_would_come(self, new_engine: Callable[[], Engine], layout):
        closing = new_engine()
        await closing.start()
        async with aclosing(closing.stream(plan(layout), Sampling(max_tokens=LONG))) as stream:
            await anext(stream)
            await closing.close()
            async with asyncio.timeout(30):
                with pytest.raises(EngineDied):
                    async for _ in stream:
                        pass
        with pytest.raises(EngineNotReady):
            await closing.ready()
        with pytest.raises(EngineNotReady):
            await anext(closing.stream(plan(layout), Sampling(max_tokens=1)))
        await closing.close()
