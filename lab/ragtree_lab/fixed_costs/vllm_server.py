"""``vllm serve`` beside the stack: the same model and engine, without ours."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
import httpx
import psutil

from generator.engines.vllm_arguments import engine_arguments, prepare_environment
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import EngineDied
from ragtree_lab.watched_stack import free_port
from services.stack.run_state import end_family

_START_S, _STOP_S, _POLL_S = 300.0, 30.0, 0.2
_SHARED = ("dtype", "max_model_len", "max_num_seqs", "block_size", "enforce_eager", "gpu_memory_utilization")
"""What the server's engine has in common with ours, beside configured engine arguments. All else is vLLM's choice."""


@asynccontextmanager
async def vllm_server(settings: GeneratorSettings, models: ModelStore, log: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """Run ``vllm serve`` with the configured model, and give a client for it. Its output goes to ``log``.

    Raises EngineDied if it ends, or is not ready within minutes.
    """
    folder = models.resolve(settings.model)
    plain = settings.model_copy(update={"kv": KvSettings(enabled=False)})
    prepare_environment(plain)
    port = free_port()
    with log.open("wb") as output:
        process = _start(_flags(plain, folder), port, output)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as http:
                await _ready(process, http, log)
                yield http
        finally:
            end_family(psutil.Process(process.pid), _STOP_S)
            process.wait()


def _flags(settings: GeneratorSettings, folder: Path) -> list[str]:
    arguments = engine_arguments(settings, folder, "")
    flags = [f"--model={folder}", f"--served-model-name={settings.model}"]
    for name in dict.fromkeys((*_SHARED, *settings.engine_args)):
        value, flag = arguments.get(name), name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{'' if value else 'no-'}{flag}")
        elif value is not None:
            flags.append(f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}")
    return flags


def _start(flags: list[str], port: int, output: BinaryIO) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host=127.0.0.1", f"--port={port}"]
    quiet = ["--disable-uvicorn-access-log", "--enable-prompt-tokens-details", "--enable-prefix-caching"]
    return subprocess.Popen(  # noqa: S603  # nosec B603  # our own command
        [*command, *quiet, *flags],
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


async def _ready(process: "subprocess.Popen[bytes]", http: httpx.AsyncClient, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            if (await http.get("/health")).is_success:
                return
        except httpx.TransportError:
            pass
        await anyio.sleep(_POLL_S)
    last = await anyio.Path(log).read_text(errors="replace")
    raise EngineDied(f"vllm serve is not ready: {last[-2000:]}")
