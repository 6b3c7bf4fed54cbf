"""The end of an engine's process: an engine is killed in the middle of a save, and another takes over its tiers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import pytest_asyncio
from engine_contract import assert_closing_ends_streams
from engine_settings import small_engine
from kv_plans import (
    DISK,
    FIRST,
    GPU,
    HOST,
    SECOND,
    SYSTEM,
    THIRD,
    ask,
    forget_blocks,
    held,
    kv_path,
    put,
    uncached_tokens,
)
from processes import engines_under

from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import EngineDied, EngineNotReady
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


class Killed(NamedTuple):
    """An engine that was killed while it copied the path ``lost`` to disk, after it had copied ``saved``.

    ``folder`` has its tiers. ``stream_error`` and ``order_error`` are what its stream and its orders raised.
    """

    engine: VllmEngine
    folder: Path
    saved: KvPath
    lost: KvPath
    stream_error: BaseException
    order_error: BaseException


def unpublished(folder: Path) -> list[Path]:
    """Files on disk that are not whole nodes."""
    files = filter(Path.is_file, (folder / "kv").rglob("*"))
    return [file for file in files if file.suffix != ".safetensors" and file.name != "disk-id"]


async def begun_save(engine: VllmEngine, path: KvPath, folder: Path) -> "asyncio.Task[tuple[LostCopy, ...]]":
    """Begin to copy a path from host memory to disk. Returns when a file is half written."""
    while True:
        saving = asyncio.create_task(engine.carry_out(Orders(path.moves(HOST, DISK, evict=False))))
        while not saving.done():
            if unpublished(folder):
                return saving
            await asyncio.sleep(0)
        # The disk was faster than this look at it.
        assert saving.result() == ()
        assert await engine.carry_out(Orders(path.moves(DISK, None))) == ()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def killed(model, tmp_path_factory) -> AsyncIterator[Killed]:
    folder = tmp_path_factory.mktemp("killed-engine")
    before = engines_under(psutil.Process())
    engine = VllmEngine(small_engine(folder), model)
    await engine.start()
    (core,) = engines_under(psutil.Process()) - before
    saved = kv_path((SYSTEM, THIRD), namespace="saved")
    await put(engine, saved, HOST)
    assert await engine.carry_out(Orders(saved.moves(HOST, DISK, evict=False))) == ()
    lost = kv_path((SYSTEM, FIRST, SECOND), namespace="lost", first_page=50)
    await ask(engine, lost.plan("to compute it", None, GPU), max_tokens=1)
    await engine.carry_out(Orders(lost.moves(GPU, HOST)))

    stream = engine.stream(kv_path((SYSTEM,)).plan("running", None, None), Sampling(max_tokens=900))
    await anext(stream)
    saving = await begun_save(engine, lost, folder)
    os.kill(core.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        with pytest.raises(EngineDied) as stream_error:
            async for _ in stream:
                pass
        with pytest.raises(EngineDied) as order_error:
            await saving
    yield Killed(engine, folder, saved, lost, stream_error.value, order_error.value)
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def successor(killed, model) -> AsyncIterator[VllmEngine]:
    """The next engine over the tiers of the killed one."""
    await killed.engine.close()
    engine = VllmEngine(small_engine(killed.folder), model)
    await engine.start()
    yield engine
    await engine.close()


async def test_a_killed_engine_raises_engine_died_until_it_is_closed(killed):
    assert isinstance(killed.stream_error, EngineDied)
    assert isinstance(killed.order_error, EngineDied)
    with pytest.raises(EngineDied):
        await killed.engine.ready()
    with pytest.raises(EngineDied):
        await ask(killed.engine, killed.saved.plan("why?", None, None))
    await killed.engine.close()
    with pytest.raises(EngineNotReady):
        await killed.engine.ready()


async def test_the_next_engine_finds_whole_nodes_only(killed, successor):
    _, folder, saved, lost, *_ = killed
    assert list(folder.glob("*.kv"))
    for tier in (HOST, DISK):
        assert {("saved", ("system",)), ("saved", ("system", "third"))} <= await held(successor, tier)
    assert await held(successor, GPU) == set()
    for tier in (HOST, DISK):
        answer = await ask(successor, saved.plan(f"from {tier}?", tier, None))
        assert answer.prefill.loaded == {tier: saved.tokens}
        assert answer.tokens == await uncached_tokens(successor, saved, f"from {tier}?")
        await forget_blocks(successor, saved)
    whole = {path for namespace, path in await held(successor, DISK) if namespace == "lost"}
    answer = await ask(successor, lost.plan("why?", DISK, None))
    depth = next((n for n in range(3) if tuple(s.key for s in lost.segments[: n + 1]) not in whole), 3)
    assert answer.prefill.cached_tokens == sum(len(s.token_ids) for s in lost.segments[:depth])
    assert answer.tokens == await uncached_tokens(successor, lost, "why?")
    assert not unpublished(folder)


# The last test of this file, because it closes the engine.
async def test_closing_ends_running_streams_and_refuses_new_ones(successor, layout, monkeypatch):
    """Also if a process of the engine ends by itself while vLLM is about to kill it."""
    ended = []

    def shut_down(processes, timeout):
        ended.extend(processes)
        raise psutil.NoSuchProcess(processes[0].pid)

    monkeypatch.setattr("vllm.v1.engine.utils.shutdown", shut_down)
    await assert_closing_ends_streams(successor, layout)
    (process,) = ended
    await asyncio.to_thread(process.join, 60)
    assert not process.is_alive()
