"""Adapters that are loaded while instances run: all serve the same ones, also those that come, restart or missed it."""

import pytest
from fake_fleet import Engine, Fleet

from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings
from cachectl.sharding.sharded_controller import ShardedController
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, Snapshot
from protocol.errors import Conflict, EngineDied, EngineNotReady, InvalidRequest, UnknownModel

FOUND = {"/legal": "0a", "/terse": "0b"}


def engine(boot, **found):
    made = Engine(boot=boot)
    made.found = FOUND | found
    return made


@pytest.fixture
def fleet():
    return Fleet(a=engine("boot-a"), b=engine("boot-b"))


@pytest.fixture
def start(tmp_path, fleet):
    async def start(snapshot=EMPTY_SNAPSHOT) -> LiveController:
        settings = ControllerSettings(policy="LRU", prepare_after_s=None)
        live = LiveController(settings, fleet, tmp_path, lambda: 0.0, lambda: 0.0)
        await live.start(lambda done, total: None, snapshot)
        return live

    return start


def added(fleet):
    return [fleet.engines[name].added for name in sorted(fleet.engines)]


async def test_all_instances_serve_one_or_none(fleet, start):
    live = await start()
    assert await live.controller.load_adapter("legal", "/legal") == "0a"
    assert added(fleet) == [{"legal": "/legal"}] * 2
    fleet.engines["b"].found["/terse"] = InvalidRequest("b has no such folder", "source")
    with pytest.raises(InvalidRequest, match="b has no such folder"):
        await live.controller.load_adapter("terse", "/terse")
    fleet.engines["b"].found["/terse"] = "other files"
    with pytest.raises(Conflict, match="find different files of 'terse' in /terse"):
        await live.controller.load_adapter("terse", "/terse")
    assert added(fleet) == [{"legal": "/legal"}] * 2
    # One that is served stays served if it cannot be loaded again.
    fleet.engines["b"].fails = EngineDied("b is gone")
    with pytest.raises(EngineDied):
        await live.controller.load_adapter("legal", "/legal")
    assert added(fleet) == [{"legal": "/legal"}] * 2


async def test_unloading_names_what_is_unknown_or_configured(fleet, start):
    for one in fleet.engines.values():
        one.adapters = {"stays": "0c"}
    live = await start()
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")
    for change in (live.controller.unload_adapter("stays"), live.controller.load_adapter("stays", "/legal")):
        with pytest.raises(Conflict, match="configured"):
            await change
    await live.controller.load_adapter("legal", "/legal")
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, {}]
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")


async def test_an_instance_that_joins_or_restarts_has_them_before_its_first_plan(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    fleet.engines["c"] = engine("boot-c")
    fleet.engines["a"].restarts()
    assert added(fleet) == [{}, {"legal": "/legal"}, {}]
    assert await live.follow() is True
    assert added(fleet) == [{"legal": "/legal"}] * 3
    assert set(live.controller.instances.boots) == {"a", "b", "c"}


async def test_an_instance_that_cannot_load_one_gets_no_plans_until_that_is_unloaded(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    fleet.engines["c"] = engine("boot-c", **{"/legal": InvalidRequest("c has no such folder", "source")})
    assert await live.follow() is False
    assert live.controller.instances.refused == {"c"}
    await live.controller.unload_adapter("legal")
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "b", "c"}


async def test_an_instance_that_missed_a_change_is_told_at_the_next_look(fleet, start):
    live = await start()
    await live.controller.load_adapter("legal", "/legal")
    missed = fleet.engines["b"]
    missed.fails = EngineDied("b does not answer")
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, {"legal": "/legal"}]
    missed.fails = None
    await live.follow()
    assert added(fleet) == [{}, {}]
    # The same name, from another place.
    missed.added = {"legal": "/terse"}
    await live.controller.load_adapter("legal", "/legal")
    await live.follow()
    assert added(fleet) == [{"legal": "/legal"}] * 2


async def test_a_new_controller_takes_over_what_instances_serve(fleet, start):
    fleet.engines["b"].added = {"legal": "/legal"}
    live = await start()
    await live.follow()
    assert added(fleet) == [{"legal": "/legal"}] * 2
    await live.controller.unload_adapter("legal")
    assert added(fleet) == [{}, {}]


async def test_the_snapshot_of_a_former_controller_decides(fleet, start):
    former = await start()
    await former.controller.load_adapter("legal", "/legal")
    snapshot = await former.controller.recovery.snapshot()
    assert snapshot.adapters == {"legal": "/legal"}
    # The whole stack restarts.
    fleet.engines = {"a": engine("boot-c"), "b": engine("boot-d")}
    live = await start(snapshot)
    await live.follow()
    assert added(fleet) == [{"legal": "/legal"}] * 2
    await start(Snapshot(adapters={}))
    assert added(fleet) == [{}, {}]


async def test_without_instances_nothing_is_loaded(fleet, start):
    live = await start()
    fleet.engines.clear()
    await live.follow()
    with pytest.raises(EngineNotReady):
        await live.controller.load_adapter("legal", "/legal")
    with pytest.raises(UnknownModel):
        await live.controller.unload_adapter("legal")


async def test_shards_remember_the_same_ones(fleet, start):
    shards = [await start(), await start()]
    sharded = ShardedController([live.controller for live in shards])
    assert await sharded.load_adapter("legal", "/legal") == "0a"
    for live in shards:
        await live.follow()
    assert added(fleet) == [{"legal": "/legal"}] * 2
    await sharded.unload_adapter("legal")
    for live in shards:
        await live.follow()
    assert added(fleet) == [{}, {}]
