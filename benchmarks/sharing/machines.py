"""Engines that stand for machines: each has host memory and a disk of its own, and reads those of the others."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring.engines import EngineMaker
from generator.engines.vllm_engine import VllmEngine
from generator.settings import PeerSettings

TIMEOUT_S = 1.0
"""How long a load waits for another machine."""

_HOST = "127.0.0.1"


@asynccontextmanager
async def machines(
    engines: EngineMaker,
    folder: Path,
    names: Sequence[str],
    *,
    sharing: bool = True,
    at_work: int = 1,
    **kv: Any,  # noqa: ANN401
) -> AsyncGenerator[dict[str, VllmEngine]]:
    """Run an engine for each name, with tiers below ``folder``; ``kv`` overrides ``KvSettings``.

    ``at_work`` of them work at the same time. Unless they are ``sharing``, none serves what it holds.
    """
    peers = sharing_peers(folder) if sharing else PeerSettings(host=_HOST, timeout_s=TIMEOUT_S)
    async with AsyncExitStack() as running:
        yield {
            name: await running.enter_async_context(
                engines.caching(folder / name, instance=name, at_work=at_work, peers=peers, **kv)
            )
            for name in names
        }


def sharing_peers(folder: Path) -> PeerSettings:
    """Settings of machines that share with each other, with a new key in ``folder``."""
    key_file = folder / "peers.key"
    key_file.touch(mode=0o600)
    key_file.write_text(secrets.token_urlsafe(32))
    return PeerSettings(key_file=key_file, host=_HOST, timeout_s=TIMEOUT_S)
