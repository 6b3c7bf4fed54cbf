"""The controller's snapshot in a real Redis that goes down and comes back."""

import asyncio

import pytest
from redis_cases import linked

from cachectl.sharding.controller_shard import ControllerShard
from cachectl.tree.snapshot import DeletionRecord, NodeRecord, Snapshot
from protocol.retrieval import StoreRevision
from services.redis.controller_state import RedisControllerState

NOTHING = Snapshot()


def node(name: str, accesses: int = 1) -> NodeRecord:
    return NodeRecord("tenant", (name,), 10, ("gpu@one", "disk@rack"), accesses, accesses, 0.5, 0)


def some(count: int, accesses: int = 1, tick: int = 7) -> Snapshot:
    nodes = {f"{number:04x}": node(f"document {number}", accesses) for number in range(count)}
    gone, too = StoreRevision("store", 12), StoreRevision("store", 13)
    deletions = DeletionRecord("gone", None, gone), DeletionRecord("too", "tenant", too)
    return Snapshot(tick, nodes, deletions, forgotten=(StoreRevision("store", 2),))


@pytest.fixture
async def redis(redis_server):
    async with linked(redis_server) as its:
        yield its


@pytest.fixture
def state(redis):
    return RedisControllerState(redis.link, "test")


async def test_snapshot_is_saved_and_loaded(state):
    # More than one batch.
    kept = some(1234)
    assert await state.keep(NOTHING, kept)
    assert await state.load() == kept


async def test_missing_snapshot_is_empty(state):
    assert await state.load() == NOTHING
    assert await state.keep(NOTHING, NOTHING)
    assert (await state.load()).nodes == {}


async def test_changes_are_merged_into_the_snapshot(state):
    before = some(3)
    await state.keep(NOTHING, before)
    nodes = {**before.nodes, "0000": node("document 0", 5), "beef": node("new")}
    del nodes["0001"]
    after = Snapshot(9, nodes, ())
    assert await state.keep(before, after)
    assert await state.load() == after


async def test_full_snapshot_replaces_the_old_one(state):
    await state.keep(NOTHING, some(100))
    assert await state.keep(NOTHING, some(2, accesses=3))
    assert await state.load() == some(2, accesses=3)


async def test_snapshot_is_saved_once_redis_is_back(state, redis, redis_server):
    await state.keep(NOTHING, some(3))
    redis_server.kill()
    assert not await state.keep(some(3), some(4))
    assert await state.load() == NOTHING
    redis_server.start()
    async with asyncio.timeout(10):
        await redis.link.returned()
    assert await state.keep(NOTHING, some(4))
    assert await state.load() == some(4)


async def test_unreadable_snapshot_is_empty(state, redis_server):
    await state.keep(NOTHING, some(2))
    with redis_server.client() as client:
        client.hset("test:kv:nodes", "0000", b"\xc1 not msgpack")
    assert await state.load() == NOTHING


async def test_full_server_keeps_the_old_snapshot(state, redis_server):
    await state.keep(NOTHING, some(2))
    redis_server.fill()
    assert not await state.keep(NOTHING, some(50))
    assert await state.load() == some(2)


async def test_another_number_of_shards_believes_nothing(redis):
    kept = Snapshot(3, {"00": node("a")}, (), ("machine",))
    pairs = [RedisControllerState(redis.link, "test", ControllerShard(number, 2)) for number in range(2)]
    for store in pairs:
        assert await store.keep(NOTHING, kept)
    assert [await store.load() for store in pairs] == [kept, kept]
    alone = RedisControllerState(redis.link, "test")
    assert (await alone.load()).places == ()
    assert await alone.keep(NOTHING, kept)
    # What the second shard knew then is out of date.
    assert [(await store.load()).places for store in pairs] == [(), ()]


async def test_a_first_start_believes_what_is_there(redis):
    assert await RedisControllerState(redis.link, "test").load() == NOTHING
