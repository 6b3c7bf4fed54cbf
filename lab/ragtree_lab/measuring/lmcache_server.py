"""LMCache's server, which keeps the KV of one engine of vLLM in host memory."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any

from generator.engines.vllm_arguments import has_gpu
from protocol.errors import ConfigError
from ragtree_lab.watched_stack import free_port

_CHUNK_TOKENS = 32
"""The smallest chunk that a CPU's blocks allow: it loses least where prompts part. LMCache's own is 256."""

_ON_CPU = {
    # vLLM would ask LMCache's connector for its abilities before it has set its CPU kernels up, which then fails,
    # because LMCache loads llvmlite. On a CPU, it has no such manager anyway.
    "disable_hybrid_kv_cache_manager": True,
}
"""vLLM's further arguments on a CPU."""

_PATIENCE_S, _STOP_S = 60.0, 10.0
_POLL_S = 0.1
_HOST = "127.0.0.1"


def has_lmcache() -> bool:
    """Whether LMCache is installed."""
    return find_spec("lmcache") is not None


@asynccontextmanager
async def lmcache_server(gib: float) -> AsyncGenerator[dict[str, Any]]:
    """Run a server with ``gib`` of memory while the context is open; yields the arguments of the vLLM that uses it.

    Raises ConfigError if the server does not start.
    """
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", _HOST, "--port", str(port)),
        *("--l1-size-gb", str(gib), "--eviction-policy", "LRU", "--disable-observability"),
        # A CPU's engine copies its KV itself, into the server's memory.
        *([] if has_gpu() else _memory_shared_on_cpu(port)),
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "WARNING"},
    )
    try:
        await _listening(process, port)
        yield {
            "kv_offloading_backend": "lmcache",
            # vLLM offloads only if it is given a size, but this one is the server's.
            "kv_offloading_size": gib,
            "kv_transfer_config": {
                "kv_connector_extra_config": {"lmcache.mp.host": f"tcp://{_HOST}", "lmcache.mp.port": port}
            },
            **({} if has_gpu() else _ON_CPU),
        }
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _memory_shared_on_cpu(port: int) -> list[str]:
    shared = ["--supported-transfer-mode", "engine_driven", "--shm-name", f"ragtree-lmcache-{port}"]
    return ["--chunk-size", str(_CHUNK_TOKENS), *shared, "--no-l1-use-lazy"]


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until the server listens. vLLM would wait for five minutes for one that has ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while process.returncode is None:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(_HOST, port)
                    writer.close()
                    return
                await asyncio.sleep(_POLL_S)
    raise ConfigError("LMCache's server does not start; what it wrote says why", "against")
