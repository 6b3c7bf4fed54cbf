"""The composition root, without a running stack."""

import asyncio
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest

from gateway.settings import GatewaySettings, Pace
from gateway.stores.stores import EmbeddedStores
from services import app
from services.config import Config
from services.redis.stores import RedisStores


class Shard:
    def __init__(self, name: str) -> None:
        self.silent = name == "retriever-1"

    async def ready(self) -> None:
        if self.silent:
            await asyncio.Event().wait()


async def test_silent_shard_times_out_before_the_retriever_does(monkeypatch):
    monkeypatch.setattr(app, "retriever_handle", Shard)
    monkeypatch.setattr(GatewaySettings, "pace", Pace(readiness_timeout_s=0.4))
    config = Config(retriever={"shards": {"count": 2, "on_lost": "partial"}})
    retriever = app._retriever(config)
    async with asyncio.timeout(config.gateway.pace.readiness_timeout_s):
        await retriever.ready()


@pytest.mark.parametrize("with_redis", [False, True])
async def test_redis_url_selects_the_gateways_stores(monkeypatch, redis_server, tmp_path, with_redis):
    # No part is called here.
    monkeypatch.setattr(app, "connect_parts", lambda _: Mock())
    redis = {"url": redis_server.url} if with_redis else {}
    built = app.build_app(Config(data_dir=tmp_path, redis=redis)).state.gateway
    assert type(built.stores) is (RedisStores if with_redis else EmbeddedStores)
    async with built.stores.opened():
        assert built.stores.degraded() == ()
    metrics = generate_latest(built.metrics.registry).decode()
    assert ("ragtree_redis_up 1.0" in metrics) == with_redis
