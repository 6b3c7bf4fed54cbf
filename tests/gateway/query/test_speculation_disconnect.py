"""Clients that disconnect while a speculation runs: everything is released."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually, whenever_possible
from speculation_scene import Scene

from protocol.plans import PlanOutcome

COMPLETED, FAILED, CANCELLED = PlanOutcome


async def searching(scene: Scene) -> None:
    await eventually(lambda: scene.searches["q"].asked == 1)


async def leasing(scene: Scene) -> None:
    scene.controller.leasing.clear()
    scene.searches["q"].finds("a", final=False)
    await scene.controller.at_lease.wait()


async def prefilling(scene: Scene) -> None:
    await scene.finds("q", "a")
    await scene.opened("q~1")


async def decoding(scene: Scene) -> None:
    await prefilling(scene)
    scene.streams["q~1"].says(2)
    # Its first token was reported.
    await eventually(lambda: not scene.controller._leases._prefilling)


async def replacing(scene: Scene) -> None:
    await decoding(scene)
    scene.controller.at_lease.clear()
    scene.controller.leasing.clear()
    scene.searches["q"].finds("b", final=False)
    await scene.controller.at_lease.wait()


async def all_said(scene: Scene) -> None:
    await decoding(scene)
    scene.streams["q~1"].says(1, finish=True)
    await eventually(lambda: scene.streams["q~1"].closed)


async def confirming(scene: Scene) -> None:
    await decoding(scene)
    scene.controller.confirming.clear()
    scene.searches["q"].finds("a", final=True)
    await scene.controller.at_confirmation.wait()


async def confirmed(scene: Scene) -> None:
    await decoding(scene)
    await scene.finds("q", "a", final=True)
    await eventually(lambda: "keep" in scene.controller.calls)


async def dropped(scene: Scene) -> None:
    await decoding(scene)
    await scene.finds("q", "b", final=True)
    await scene.opened("q")


PHASES = [searching, leasing, prefilling, decoding, replacing, all_said, confirming, confirmed, dropped]


@pytest.mark.parametrize("phase", PHASES)
async def test_disconnect_releases_everything(scene: Scene, phase):
    query = scene.asks("q")
    await phase(scene)
    await query.leaves()
    scene.controller.leasing.set()
    await scene.at_rest()
    plans = set() if phase in (searching, leasing) else {"q~1", "q"} if phase is dropped else {"q~1"}
    assert scene.controller.outcomes == dict.fromkeys(plans, CANCELLED)


async def test_cancellation_at_any_loop_iteration_releases_everything():
    speculated = 0
    for turns in range(400):
        scene = Scene()
        scene.answers_by_itself = True
        query = scene.asks("q")
        for documents, final in (("ab", False), ("ac", False), ("ac", False), ("ac", True)):
            scene.searches["q"].finds(documents, final)
        for _ in range(turns):
            await asyncio.sleep(0)
        query.task.cancel()
        await asyncio.wait({query.task})
        await scene.at_rest()
        speculated += len(scene.controller.plans) > 0
        if not query.task.cancelled():
            break
    assert await query.answer() == "ac ac "
    assert speculated > 3, "too few cancellations to mean anything"


@pytest.mark.parametrize(
    ("phase", "outcomes"),
    [
        (leasing, {}),
        (prefilling, {"abandoned": 1}),
        (replacing, {"wrong": 1}),
        (all_said, {"abandoned": 1}),
        (confirming, {"abandoned": 1}),
        (confirmed, {"confirmed": 1}),
        (dropped, {"wrong": 1}),
    ],
)
async def test_each_guess_is_counted_once_by_outcome(scene: Scene, phase, outcomes: dict[str, int]):
    query = scene.asks("q")
    await phase(scene)
    await query.leaves()
    scene.controller.leasing.set()
    assert scene.counted == outcomes


@pytest.fixture
def speculative(stack: Stack) -> Stack:
    stack.controller.decide = whenever_possible
    return stack


@pytest.mark.parametrize("phase", ["second_stage", "speculate", "prefill", "decode", "confirm"])
async def test_http_disconnect_releases_everything(over_http, speculative: Stack, phase: str):
    phases = speculative.phases
    phases.held |= {"second_stage", phase} - ({"second_stage"} if phase == "confirm" else set())
    async with over_http() as live:
        asking = asyncio.create_task(live.client.post("/query", json={"query": "x", "top_k": 1}))
        await phases.reached[phase].wait()
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: live.running == 0 and speculative.at_rest)
        await eventually(lambda: not len(speculative.controller.speculated) or bool(speculative.controller.reports))
    reports = speculative.controller.reports
    assert len({report.query_id for report in reports}) == len(reports) == 1
    assert reports[0].outcome is CANCELLED
    assert reports[0].query_id.endswith("~1")
    assert speculative.generator.calls["opened"] == speculative.generator.calls["closed"]
