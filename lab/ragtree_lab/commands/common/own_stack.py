"""A stack that is started for one measurement."""

import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from services.config import Config
from services.stack.run_state import StackProcess

if TYPE_CHECKING:
    from services.app import Parts

_OWN = {"SERVER__PORT": "0", "GATEWAY__API_KEYS": "[]", "GENERATOR__KV__OBJECT_STORE": "null"}
_START_S = 300


@asynccontextmanager
async def own_stack(
    config: Config, environment: Mapping[str, str]
) -> AsyncGenerator[tuple[httpx.AsyncClient, "Parts"]]:
    """Run a stack on an empty folder, and give its API and its parts. ``config`` is the stack's own.

    ``environment`` is added to this process's. The stack shares this process's session, so that Linux treats both
    alike. Raises StartFailed.
    """
    import ray

    from services.app import connect_parts

    own = {f"RAGTREE_{name}": value for name, value in _OWN.items()}
    with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
        process = StackProcess(Path(folder), {**own, **environment}, own_session=False)
        running = process.start(_START_S)
        try:
            ray.init(address=running.ray_address, logging_level="ERROR", log_to_driver=False)
            parts = connect_parts(config)
            async with httpx.AsyncClient(base_url=running.url, timeout=600) as http:
                yield http, parts
        finally:
            try:
                ray.shutdown()
            finally:
                process.stop()
