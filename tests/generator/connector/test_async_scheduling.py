"""Asynchronous scheduling, vLLM's default on CUDA: a step is scheduled before the last one is done."""

import asyncio

import pytest
import pytest_asyncio
from engine_settings import small_engine
from kv_plans import DISK, GPU, HOST, SYSTEM, ask, forget_blocks, kv_path, put, segment, uncached_text

from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(150)]

LONG, BEHIND = segment("long", 520), segment("behind", 150)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model, tmp_path_factory):
    """A started vLLM with asynchronous scheduling."""
    settings = small_engine(tmp_path_factory.mktemp("async"))
    settings.engine_args["async_scheduling"] = True
    engine = VllmEngine(settings, model)
    await engine.start()
    yield engine
    await engine.close()


async def test_answers_are_the_same_from_every_tier(engine):
    for tier in (GPU, HOST, DISK):
        path = kv_path((SYSTEM, LONG, BEHIND))
        await put(engine, path, tier)
        answer = await ask(engine, path.plan("why?", tier, GPU))
        assert answer.prefill.loaded == {tier: path.tokens}
        assert answer.text == await uncached_text(engine, path, "why?")
        await engine.carry_out(Orders(everything=True))


async def test_requests_that_share_a_failing_load_are_answered_rightly(engine):
    path = kv_path((SYSTEM, LONG, BEHIND))
    await put(engine, path, HOST)
    await engine.carry_out(Orders((path.moves(HOST, None)[1],)))
    answers = await asyncio.gather(*(ask(engine, path.plan("why?", HOST, DISK)) for _ in range(3)))
    assert any(LostCopy(path.keys[1], HOST) in answer.prefill.lost for answer in answers)
    expected = await uncached_text(engine, path, "why?")
    assert {answer.text for answer in answers} == {expected}
    # What was kept is right.
    await forget_blocks(engine, path)
    kept = await ask(engine, path.plan("why?", [HOST, None, None], None))
    assert kept.text == expected
    await engine.carry_out(Orders(everything=True))


async def test_a_request_that_is_aborted_while_others_run_changes_no_answer(engine):
    path = kv_path((SYSTEM, LONG, BEHIND))
    await put(engine, path, DISK)
    expected = await uncached_text(engine, path, "why?")
    for _ in range(4):
        stream = engine.stream(path.plan("never mind", DISK, GPU), Sampling(max_tokens=40))
        step = asyncio.create_task(anext(stream))
        answers = asyncio.gather(*(ask(engine, path.plan("why?", DISK, GPU)) for _ in range(2)))
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait({step})
        await stream.aclose()
        assert {answer.text for answer in await answers} == {expected}
        await forget_blocks(engine, path)
    await engine.carry_out(Orders(everything=True))
