"""Instances whose KV is not that of the others: they get no plans, and operators see which ones, and why."""

import re

import pytest
from controller_under_test import ask
from fake_fleet import Engine, Fleet
from structlog.testing import capture_logs

from protocol.kv import PageGroup


async def test_an_instance_of_another_model_is_refused_and_logged_once(start):
    fleet = Fleet(a=Engine())
    live = await start(fleet)
    fleet.engines |= {"b": Engine(fingerprint="another"), "c": Engine(None)}
    with capture_logs() as logs:
        for _ in range(3):
            assert await live.follow() is False
    assert [entry["instance"] for entry in logs if entry["log_level"] == "error"] == ["b", "c"]
    assert set(live.controller.instances.boots) == {"a"}
    # A later instance of this name may be another engine.
    del fleet.engines["b"]
    await live.follow()
    fleet.engines["b"] = Engine()
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "b"}


async def test_an_engine_that_restarts_with_another_model_is_retired(start):
    fleet = Fleet(a=Engine(), b=Engine())
    live = await start(fleet)
    fleet.engines["a"].restarts(fingerprint="another")
    with capture_logs() as logs:
        await live.follow()
        await live.follow()
    assert [entry["instance"] for entry in logs if entry["log_level"] == "error"] == ["a"]
    assert set(live.controller.instances.boots) == {"b"}
    assert (await live.controller.admit(ask("query"))).instance == "b"


async def test_refused_instances_are_in_the_statistics_until_they_are_gone(start):
    async def refused():
        loads = (await live.controller.stats()).instances
        return {load.instance: load.retired for load in loads if load.refused}

    fleet = Fleet(a=Engine(), b=Engine())
    live = await start(fleet)
    assert await refused() == {}
    await live.controller.admit(ask("query"))
    fleet.engines["a"].restarts(fingerprint="another")
    fleet.engines["c"] = Engine(fingerprint="another")
    await live.follow()
    # One has a plan of its former life, and the other one was never known.
    assert await refused() == {"a": True, "c": False}
    assert len((await live.controller.stats()).instances) == 3
    del fleet.engines["c"]
    await live.follow()
    assert await refused() == {"a": True}


@pytest.mark.parametrize(
    ("others", "own", "said"),
    [
        ({}, {"page_tokens": 16}, "its blocks have 16 tokens, and those of the others 1; .*block_size"),
        (
            {},
            {"groups": (PageGroup(), PageGroup(64))},
            "in 2 groups, .* in 1; .*hybrid_kv_cache_manager",
        ),
        ({"layout": "X bfloat16"}, {"layout": "X float32", "page_bytes": 2}, "2 bytes of X float32, .*generator.dtype"),
        ({"layout": "FLASH"}, {"layout": "CPU"}, "is CPU on .* and that of the others FLASH .*page_layout neutral"),
        ({}, {}, "other files of the model"),
        ({}, None, "it keeps no KV, and the others do$"),
        (None, {}, "it keeps KV, and the others do not$"),
    ],
)
async def test_the_reason_is_logged(start, others, own, said):
    def engine(memory, **differences):
        return Engine(None) if memory is None else Engine(**memory, **differences)

    fleet = Fleet(a=engine(others))
    live = await start(fleet)
    fleet.engines["b"] = engine(own, fingerprint="another")
    with capture_logs() as logs:
        await live.follow()
    (entry,) = (entry for entry in logs if entry["log_level"] == "error")
    assert entry["instance"] == "b"
    assert re.search(said, entry["reason"])
