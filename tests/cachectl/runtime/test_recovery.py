"""A tree that is restored from what tiers report."""

import asyncio

import pytest
from controller_under_test import TOKENS, ask, fill, held, key, pages, report, sources, state, waiting

from protocol.cache import RestoreResult
from protocol.errors import InvalidRequest, UnknownInstance
from protocol.kv import Move, ResidencyReport
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def test_queries_find_a_restored_tree(build):
    controller = build("one", "two", host=1000, disk=1000)
    result = controller.recovery.restore(
        [
            ResidencyReport(DISK, (held("ax"), held("axy"))),
            ResidencyReport(HOST, (held("a", pages=pages(1)),)),
            ResidencyReport(GPU, (held("ab"), held("a")), "two"),
        ]
    )
    assert result == RestoreResult(restored=5, refused=0)
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("two", [GPU, GPU, None])
    plan = await controller.admit(ask("next", "axy"))
    assert (plan.instance, sources(plan)) == ("one", [HOST, DISK, DISK])


async def test_restoring_twice_changes_nothing_more(build):
    controller = build(host=1000)
    reports = [
        ResidencyReport(GPU, (held("a"), held("ab")), "one"),
        ResidencyReport(HOST, (held("a", pages=pages(3, first=7)),)),
    ]
    assert controller.recovery.restore(reports) == RestoreResult(restored=3, refused=0)
    before = await state(controller)
    assert controller.recovery.restore(reports) == RestoreResult(restored=3, refused=0)
    assert await state(controller) == before


async def test_copies_without_room_or_parent_are_dropped_instead_of_restored(build):
    controller = build(gpu=25, host=5)
    result = controller.recovery.restore(
        [
            ResidencyReport(GPU, (held("a"), held("b"), held("xy"), held("abc", tokens=1)), "one"),
            ResidencyReport(HOST, (held("a"),)),
        ]
    )
    assert result == RestoreResult(restored=2, refused=3)
    plan = await controller.admit(ask("query"))
    assert set(plan.moves) == {
        Move(key("xy"), TOKENS, GPU, None, "one"),
        Move(key("abc"), 1, GPU, None, "one"),
        Move(key("a"), TOKENS, HOST, None, None),
    }


async def test_a_waiting_query_whose_documents_are_restored_overtakes(build):
    controller = build(max_queued=2)
    await controller.admit(ask("runs"))
    older = await waiting(controller, ask("older", "x"))
    younger = await waiting(controller, ask("younger", "ab"))
    controller.recovery.restore([ResidencyReport(GPU, (held("a"), held("ab")), "one")])
    await controller.complete(report("runs"))
    first, _ = await asyncio.wait({older, younger}, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().query_id for task in first] == ["younger"]
    await controller.complete(report("younger"))
    await older


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (ResidencyReport(GPU, (held("b"),), "gone"), UnknownInstance),
        (ResidencyReport(GPU, (held("b"),)), UnknownInstance),
        (ResidencyReport(HOST, (held("b"),), "one"), InvalidRequest),
        (ResidencyReport(HOST, (held(""),)), InvalidRequest),
        (ResidencyReport(HOST, (held("b"), held("c", tokens=0))), InvalidRequest),
    ],
    ids=["unknown instance", "no instance", "host memory of an instance", "no path", "no tokens"],
)
async def test_an_invalid_residency_report_is_refused_and_nothing_restored(build, broken, error):
    controller = build(host=1000)
    await fill(controller, "z")
    before = await state(controller)
    with pytest.raises(error):
        controller.recovery.restore([ResidencyReport(HOST, (held("a"),)), broken])
    assert await state(controller) == before
