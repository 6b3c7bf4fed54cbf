"""An engine that fails in a step: what it computed is known, and is told apart from what only waited."""

import asyncio
import os
import signal
from contextlib import aclosing

import psutil
import pytest
from engine_settings import SLOTS, small_engine
from kv_plans import FIRST, SYSTEM, kv_path
from processes import engines_under

from generator.engines.vllm_engine import VllmEngine
from protocol.errors import EngineDied, EngineFailed
from protocol.generation import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

LONG = Sampling(600, ignore_eos=True)


async def error_of(engine: VllmEngine, name: str, sampling: Sampling, begun: asyncio.Event) -> BaseException:
    """What a request raises, which is sure to fail."""
    plan = kv_path((SYSTEM, FIRST)).plan(name, None, None)
    try:
        async with aclosing(engine.stream(plan, sampling)) as steps:
            async for _ in steps:
                begun.set()
    except (EngineDied, EngineFailed) as error:
        return error
    raise AssertionError("the engine did not die")


@pytest.mark.parametrize(
    "killed",
    [pytest.param(False, id="fails by itself", marks=pytest.mark.prove("generator/")), pytest.param(True, id="killed")],
)
async def test_what_was_computed_is_told_from_what_waited(tiny_model, tmp_path, monkeypatch, killed):
    before = engines_under(psutil.Process())
    engine = VllmEngine(small_engine(tmp_path), tiny_model)
    await engine.start()
    try:
        (core,) = engines_under(psutil.Process()) - before
        events = [asyncio.Event() for _ in range(SLOTS - 1)]
        running = [
            asyncio.create_task(error_of(engine, f"runs {number}", LONG, event)) for number, event in enumerate(events)
        ]
        for event in events:
            await event.wait()
        if killed:
            poison = asyncio.create_task(error_of(engine, "runs too", LONG, (begun := asyncio.Event())))
            await begun.wait()
            waiting = asyncio.create_task(error_of(engine, "waits", LONG, asyncio.Event()))
            while len(engine._parts().requests._running) < SLOTS + 1:
                await asyncio.sleep(0)
            os.kill(core.pid, signal.SIGKILL)
        else:
            # vLLM's own generators of random numbers end its step on a CPU.
            monkeypatch.setattr("generator.engines.vllm_requests.place_seed", lambda *_: None)
            poison = asyncio.create_task(error_of(engine, "poison", Sampling(4, 0.8, seed=42), asyncio.Event()))
            waiting = asyncio.create_task(error_of(engine, "waits", LONG, asyncio.Event()))
        async with asyncio.timeout(60):
            computed = await asyncio.gather(poison, *running)
            waited = await waiting
        assert isinstance(waited, EngineDied)
        assert not waited.begun
        if killed:
            assert all(isinstance(error, EngineDied) and error.begun for error in computed)
        else:
            assert all(isinstance(error, EngineFailed) for error in computed)
        later = await error_of(engine, "later", LONG, asyncio.Event())
        assert isinstance(later, EngineDied)
        assert not later.begun
    finally:
        await engine.close()
