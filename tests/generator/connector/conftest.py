"""Fixtures for tests of the connector inside a real vLLM."""

from collections.abc import AsyncIterator

import pytest_asyncio
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, held, kv_path

from benchmarks.measuring.kv_paths import KvPath
from protocol.kv import Orders


@pytest_asyncio.fixture(loop_scope="session")
async def path(engine) -> AsyncIterator[KvPath]:
    """A new path in the shared engine. Afterwards it is deleted from all tiers."""
    made = kv_path((SYSTEM, FIRST, SECOND))
    yield made
    assert await engine.carry_out(Orders(forget=((made.namespace, "system"),))) == ()
    for tier in (GPU, HOST, DISK):
        assert made.namespace not in {namespace for namespace, _ in await held(engine, tier)}
