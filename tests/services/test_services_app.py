"""The composition root, without the stack that it binds."""

import asyncio

from services import app
from services.config import Config


class Shard:
    def __init__(self, handle: str, name: str) -> None:
        self.silent = handle == name == "retriever-1"

    async def ready(self) -> None:
        if self.silent:
            await asyncio.Event().wait()


async def test_a_silent_shard_is_found_missing_before_the_gateway_gives_up_the_retriever(monkeypatch):
    monkeypatch.setattr(app, "_handle", lambda name: name)
    monkeypatch.setattr(app, "RetrieverHandle", Shard)
    config = Config(gateway={"readiness_timeout_s": 0.4}, retriever={"shards": {"count": 2, "on_lost": "partial"}})
    retriever = app._retriever(config)
    async with asyncio.timeout(config.gateway.readiness_timeout_s):
        await retriever.ready()
