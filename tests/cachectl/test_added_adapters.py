"""Adapters that are loaded while instances run: all serve the same ones, also those that come, restart or missed it."""

import asyncio

import pytest
from controller_under_test import Clock
from fake_fleet import Engine, Fleet

from cachectl.runtime import live_controller as live_module
from cachectl.runtime.live_controller import ALIGN_AGAIN_S, LiveController
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import ControllerShard
from cachectl.sharding.sharded_controller import ShardedController
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, Snapshot
from protocol.errors import Conflict, EngineDied, EngineNotReady, InternalError, InvalidRequest, UnknownModel
from protocol.generation import ServedAdapter

FOUND = {"/legal": "0a", "/terse": "0b"}
LEGAL = {"legal": ServedAdapter("0a", "/legal")}
GONE = InvalidRequest("no such folder", "source")


def engine(boot, **found):
    made = Engine(boot=boot)
    made.found = FOUND | found
    return made


@pytest.fixture
def fleet():
    return Fleet(a=engine("boot-a"), b=engine("boot-b"))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def start(tmp_path, fleet, clock):
    async def start(snapshot=EMPTY_SNAPSHOT, shard=0, shards=1) -> LiveController:
        settings = ControllerSettings(policy="LRU", prepare_after_s=None)
        of = ControllerShard(shard, shards)
        live = LiveController(settings, fleet, tmp_path, clock, lambda: 0.0, shard=of)
        await live.start(lambda done, total: None, snapshot)
        return live

    return start


def added(fleet):
    return [fleet.engines[name].added for name in sorted(fleet.engines)]


async def test_all_instances_serve_one_or_none(fleet, start):
    live = await start()
    assert await live.controller.load_adapter("legal", "/legal") == "0a"
    assert added(fleet) == [LEGAL] * 2
    assert await live.controller.served_adapters() == LEGAL
    fleet.engines["b"].found["/terse"] = GONE
    with pytest.raises(InvalidRequest, match="no such folder"):
        await live.controller.load_adapter("terse", "/terse")
    fleet.engines["b"].found["/terse"] = "other files"
    with pytest.raises(Conflict, match="find different files of 'terse' in /terse"):
        await live.controller.load_adapter("terse", "/terse")
    assert added(fleet) == [LEGAL] * 2
    # One that is served stays served if it cannot be loaded again.
    fleet.engines["b"].fails = EngineDied("b is gone")
    with pytest.raises(EngineDied):
        await live.controller.load_adapter("legal", "/legal")
    assert added(fleet) == [LEGAL] * 2


async def test_unloading_names_what_is_unknown_or_configured(fleet, start):
    for one in fleet.engines.values():
        one.adapters = {"stays": "0c"}
    live = await start()
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")
    for change in (live.controller.unload_adapter("stays"), live.controller.load_adapter("stays", "/legal")):
        with pytest.raises(Conflict, match=r"one of generator\.adapters"):
            await change
    await live.controller.load_adapter("legal", "/legal")
    assert await live.controller.served_adapters() == {"stays": ServedAdapter("0c")} | LEGAL
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, {}]
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")


async def test_an_instance_that_joins_or_restarts_has_them_before_its_first_plan(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    fleet.engines["c"] = engine("boot-c")
    fleet.engines["a"].restarts()
    assert added(fleet) == [{}, LEGAL, {}]
    assert await live.follow() is True
    assert added(fleet) == [LEGAL] * 3
    assert set(live.controller.instances.boots) == {"a", "b", "c"}


async def test_one_that_joins_in_the_middle_of_a_load_has_it_too(fleet, start):
    live = await start()
    fleet.engines["a"].loading.clear()
    loading = asyncio.create_task(live.controller.load_adapter("legal", "/legal"))
    await asyncio.sleep(0)
    fleet.engines["c"] = engine("boot-c")
    assert await live.follow() is True
    # Meanwhile, nobody takes away what others have loaded already.
    assert added(fleet) == [{}, LEGAL, {}]
    with pytest.raises(Conflict, match="being loaded or unloaded"):
        await live.controller.unload_adapter("legal")
    fleet.engines["a"].loading.set()
    assert await loading == "0a"
    assert added(fleet) == [LEGAL] * 3


async def test_an_instance_that_goes_in_the_middle_of_a_load_does_not_fail_it(fleet, start):
    live = await start()
    gone = fleet.engines["b"]
    gone.loading.clear()
    loading = asyncio.create_task(live.controller.load_adapter("legal", "/legal"))
    await asyncio.sleep(0)
    del fleet.engines["b"]
    await live.follow()
    gone.fails = EngineDied("b is gone")
    gone.loading.set()
    assert await loading == "0a"
    assert added(fleet) == [LEGAL]


@pytest.mark.parametrize("found", [GONE, Conflict("all places are taken"), InternalError("a defect"), "other files"])
async def test_an_instance_that_cannot_load_one_gets_no_plans_until_it_can(fleet, start, clock, found):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    late = fleet.engines["c"] = engine("boot-c", **{"/legal": found})
    for _ in range(3):
        assert await live.follow() is False
        assert late.added == {}
    assert set(live.controller.instances.boots) == {"a", "b"}
    late.found["/legal"] = "0a"
    assert await live.follow() is False
    clock.now += ALIGN_AGAIN_S
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "b", "c"}
    assert late.added == LEGAL


async def test_it_is_asked_at_once_when_the_adapter_is_unloaded(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    fleet.engines["c"] = engine("boot-c", **{"/legal": GONE})
    assert await live.follow() is False
    await live.controller.unload_adapter("legal")
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "b", "c"}


async def test_what_nobody_can_load_is_served_no_more(fleet, start):
    """The only instance restarts, and finds other files than before."""
    del fleet.engines["b"]
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    only = fleet.engines["a"]
    only.restarts()
    only.found["/legal"] = "other files"
    # The kept KV of another instance's work does not serve queries.
    fleet.engines["k"] = engine("boot-k")
    fleet.engines["k"].generates_kv = True
    await live.follow()
    await live.follow()
    assert await live.controller.served_adapters() == {}
    assert only.added == {}
    assert (set(live.controller.instances.boots), live.controller.instances.refused) == ({"a", "k"}, set())
    assert not live.controller.instances.tiers.retired


async def test_an_instance_that_missed_a_change_is_told_at_the_next_look(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    missed = fleet.engines["b"]
    missed.fails = EngineDied("b does not answer")
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, LEGAL]
    missed.fails = None
    await live.follow()
    assert added(fleet) == [{}, {}]


async def test_a_new_controller_takes_over_what_instances_serve(fleet, start):
    fleet.engines["b"].added = dict(LEGAL)
    live = await start()
    await live.follow()
    assert added(fleet) == [LEGAL] * 2
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, {}]


async def test_the_snapshot_of_a_former_controller_decides(fleet, start):
    former = await start()
    await former.controller.load_adapter("legal", "/legal")
    snapshot = await former.controller.recovery.snapshot()
    assert snapshot.added == LEGAL
    # The whole stack restarts.
    fleet.engines = {"a": engine("boot-c"), "b": engine("boot-d")}
    live = await start(snapshot)
    await live.follow()
    assert added(fleet) == [LEGAL] * 2
    live = await start(Snapshot(added={}))
    await live.follow()
    assert added(fleet) == [{}, {}]


async def test_what_a_restarted_stack_cannot_serve_does_not_keep_it_from_starting(fleet, start):
    """Its folder is gone, or it is one of the configuration now."""
    snapshot = Snapshot(added={"gone": ServedAdapter("0d", "/gone"), "stays": ServedAdapter("0c", "/stays")} | LEGAL)
    for one in fleet.engines.values():
        one.adapters = {"stays": "0c"}
        one.found["/gone"] = GONE
    live = await start(snapshot)
    await live.follow()
    assert set(live.controller.instances.boots) == {"a", "b"}
    assert await live.controller.served_adapters() == {"stays": ServedAdapter("0c")} | LEGAL
    assert added(fleet) == [LEGAL] * 2


async def test_without_instances_nothing_is_loaded(fleet, start):
    live = await start()
    fleet.engines.clear()
    await live.follow()
    with pytest.raises(EngineNotReady):
        await live.controller.load_adapter("legal", "/legal")
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")


async def test_the_first_of_several_shards_decides(fleet, start):
    shards = [await start(shard=number, shards=2) for number in range(2)]
    sharded = ShardedController([live.controller for live in shards])
    assert await sharded.load_adapter("legal", "/legal") == "0a"
    fleet.engines["c"] = engine("boot-c")
    for live in reversed(shards):
        await live.follow()
    assert added(fleet) == [LEGAL] * 3
    assert await sharded.served_adapters() == LEGAL
    # Another shard starts anew, whatever is served.
    other = await start(shard=1, shards=2)
    await other.follow()
    assert added(fleet) == [LEGAL] * 3
    assert set(other.controller.instances.boots) == {"a", "b", "c"}
    await sharded.unload_adapter("legal")
    for live in (shards[0], other):
        await live.follow()
    assert added(fleet) == [{}, {}, {}]


async def test_an_instance_that_joins_while_another_adapter_is_loaded_has_both(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    late = fleet.engines["c"] = engine("boot-c")
    late.loading.clear()
    looking = asyncio.create_task(live.follow())
    await asyncio.sleep(0.01)
    await live.controller.load_adapter("terse", "/terse")
    late.loading.set()
    assert await looking is False
    assert "c" not in live.controller.instances.boots
    assert await live.follow() is True
    assert late.added.keys() == {"legal", "terse"}


async def test_a_new_controller_begins_with_an_instance_that_serves_all(fleet, start):
    """Another one has not the adapter's folder, and comes first by its name."""
    fleet.engines["a"].found["/legal"] = GONE
    fleet.engines["b"].added = dict(LEGAL)
    live = await start()
    await live.follow()
    assert await live.controller.served_adapters() == LEGAL
    assert set(live.controller.instances.boots) == {"b"}
    # As soon as the one that serves it is gone, the other one takes its place at once.
    del fleet.engines["b"]
    for _ in range(3):
        await live.follow()
    assert set(live.controller.instances.boots) - live.controller.instances.tiers.retired == {"a"}
    assert await live.controller.served_adapters() == {}


async def test_a_slow_load_does_not_keep_the_controller_from_looking(fleet, start, monkeypatch):
    monkeypatch.setattr(live_module, "ALIGN_S", 0.01)
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    late = fleet.engines["c"] = engine("boot-c")
    late.loading.clear()
    assert await live.follow() is False
    fleet.engines["d"] = engine("boot-d")
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "b", "d"}
    late.loading.set()
    await asyncio.sleep(0.01)
    assert await live.follow() is True
    assert "c" in live.controller.instances.boots


async def test_a_stale_adapter_gives_its_place_up_first(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    stale = fleet.engines["b"]
    stale.places = 1
    stale.added = {"stale": ServedAdapter("0b", "/terse")}
    await live.follow()
    assert stale.added == LEGAL
