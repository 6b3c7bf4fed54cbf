"""The check of `helm test`: it passes if the stack answers, else it gives the reason."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from protocol.errors import Unavailable

ASK = Path(__file__).parents[3] / "helm" / "ragtree" / "files" / "ask.py"
KEYS = [{"secret": "sesame", "tenant": "acme"}]


async def _ask(url, *, keys_required, **more):
    environment = {"PATH": os.environ["PATH"], "GATEWAY_URL": url, "KEYS_REQUIRED": keys_required, **more}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ASK), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_open_stack_passes(over_http):
    async with over_http() as served:
        status, said = await _ask(served.url, keys_required="false")
    assert (status, said.splitlines()[0]) == (0, "ready")
    assert "answered: {" in said


@pytest.mark.parametrize(
    ("key", "said_last"), [({"API_KEY": "sesame"}, "answered: {"), ({}, "without a key is refused")]
)
async def test_stack_with_keys_passes(over_http, key, said_last):
    async with over_http(api_keys=KEYS) as served:
        status, said = await _ask(served.url, keys_required="true", **key)
    assert status == 0
    assert said_last in said


async def test_open_stack_that_should_have_keys_fails(over_http):
    async with over_http() as served:
        status, said = await _ask(served.url, keys_required="true")
    assert status == 1
    assert "/query says 200 to a question without a key" in said


@pytest.mark.parametrize("collections", [{}, {("default", "default"): 0}])
async def test_stack_without_documents_passes(over_http, stack, collections):
    stack.retriever.collections = collections
    async with over_http() as served:
        status, said = await _ask(served.url, keys_required="false")
    assert status == 0
    assert "no documents yet" in said


async def test_stack_that_is_not_ready_fails(over_http, stack):
    async def not_ready():
        raise Unavailable("The model is loading.")

    stack.generator.ready = not_ready
    async with over_http() as served:
        status, said = await _ask(served.url, keys_required="false")
    assert status == 1
    assert "/readyz says 503" in said


async def test_unreachable_gateway_fails():
    status, said = await _ask("http://127.0.0.1:9", keys_required="false")
    assert status == 1
    assert "cannot be reached" in said
