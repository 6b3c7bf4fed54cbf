"""Fixtures for tests of the connector: a path inside a real vLLM, and vLLM's configuration without an engine."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from engine_settings import serving_peers, small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, held, kv_path
from vllm_configs import Configuring, configuring, make_config_folders

from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.kv import Orders


class Started(NamedTuple):
    """A started engine and the folder of its KV."""

    engine: VllmEngine
    folder: Path


EngineOf = Callable[[bool], Awaitable[Started]]
"""Returns the engine that schedules its steps asynchronously, or the one that does not."""


@pytest.fixture(
    params=[
        pytest.param(False, id="steps in turn"),
        pytest.param(True, id="asynchronous steps", marks=pytest.mark.prove("generator/")),
    ]
)
def asynchronous(request) -> bool:
    """Whether the engine schedules a step before the last one is done, which is vLLM's default on CUDA."""
    return request.param


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def engine_of(tiny_model, tmp_path_factory) -> AsyncIterator[EngineOf]:
    """The engines that all tests share. Each is started when the first test needs it."""
    started: dict[bool, Started] = {}

    async def engine_of(asynchronous: bool) -> Started:
        if asynchronous not in started:
            folder = tmp_path_factory.mktemp("connector")
            settings = small_engine(folder)
            settings.engine_args["async_scheduling"] = asynchronous
            # So small that a few files fill it.
            settings.kv.disk_gib = 0.0015
            settings.kv.auxiliary_model = str(tiny_model)
            settings.kv.peers = serving_peers(folder)
            engine = VllmEngine(settings, tiny_model)
            await engine.start()
            started[asynchronous] = Started(engine, folder)
        return started[asynchronous]

    yield engine_of
    for engine, _ in started.values():
        await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(engine_of, asynchronous) -> VllmEngine:
    """A started vLLM with the connector and a tiny model. Tests use namespaces of their own, and clean up."""
    return (await engine_of(asynchronous)).engine


@pytest_asyncio.fixture(loop_scope="session")
async def kv_folder(engine_of, asynchronous) -> Path:
    """The folder for the engine's KV."""
    return (await engine_of(asynchronous)).folder


@pytest_asyncio.fixture(loop_scope="session")
async def path(engine) -> AsyncIterator[KvPath]:
    """A new path in the shared engine. Afterwards it is deleted from all tiers."""
    made = kv_path((SYSTEM, FIRST, SECOND))
    yield made
    assert await engine.carry_out(Orders(forget=((made.namespace, "system"),))) == ()
    for tier in (GPU, HOST, DISK):
        assert made.namespace not in {namespace for namespace, _ in await held(engine, tier)}


@pytest.fixture(scope="session")
def config_folders(tmp_path_factory) -> dict[str, Path]:
    """Model folders without weights, by kind."""
    return make_config_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture
def configured(config_folders, tmp_path) -> Iterator[Configuring]:
    """Makes vLLM's configuration of a model with the connector, from further engine arguments."""
    with configuring(config_folders, tmp_path) as make:
        yield make
