"""Speculations whose engine, controller or search fails."""

import pytest
from gateway_fakes import eventually
from speculation_scene import Scene

from protocol.errors import DeadlineExceeded, EngineDied, EngineFailed, Unavailable
from protocol.plans import PlanOutcome

COMPLETED, FAILED, CANCELLED = PlanOutcome


@pytest.mark.parametrize("said", [0, 2], ids=["prefilling", "decoding"])
async def test_failed_guess_means_ordinary_admission(scene: Scene, said: int):
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(said)
    guess.breaks(EngineDied("broken"))
    await eventually(lambda: guess.closed)
    await scene.finds("q", "a", final=True)
    (await scene.opened("q")).says(2, finish=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


@pytest.mark.parametrize("final", ["a", "b"])
async def test_a_guess_that_an_engine_failed_at_ends_the_query(scene: Scene, final: str):
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.breaks(EngineFailed("in its step"))
    await eventually(lambda: guess.closed)
    scene.searches["q"].finds(final, final=True)
    with pytest.raises(EngineFailed):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED}


async def test_two_guesses_lost_with_their_engines_end_the_query(scene: Scene):
    query = scene.asks("q")
    for number, document in enumerate("ab", start=1):
        await scene.finds("q", document)
        (await scene.opened(f"q~{number}")).breaks(EngineDied("broken"))
        await eventually(lambda number=number: scene.streams[f"q~{number}"].closed)
    scene.searches["q"].finds("b", final=True)
    with pytest.raises(EngineFailed):
        await query.task


async def test_failed_guess_may_restart_at_a_later_stage(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    (await scene.opened("q~1")).breaks(EngineDied("broken"))
    await eventually(lambda: scene.streams["q~1"].closed)
    await scene.finds("q", "b")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q~2": COMPLETED}


async def test_guess_that_fails_during_confirmation_means_ordinary_admission(scene: Scene):
    scene.controller.confirming.clear()
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(1)
    scene.searches["q"].finds("a", final=True)
    await scene.controller.at_confirmation.wait()
    guess.breaks(EngineDied("broken"))
    await eventually(lambda: guess.closed)
    scene.answers_by_itself = True
    scene.controller.confirming.set()
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


async def test_guess_is_closed_if_ending_it_fails(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    scene.end_fails = EngineDied("gone")
    await scene.finds("q", "b")
    await scene.given_back("q~1")
    assert guess.closed
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "


async def test_failed_confirmed_guess_fails_the_query(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    stream = await scene.opened("q~1")
    stream.says(1)
    await scene.finds("q", "a", final=True)
    await eventually(lambda: not query.silent)
    stream.breaks(EngineDied("broken"))
    with pytest.raises(EngineDied):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}


@pytest.mark.parametrize("call", ["on_candidates", "speculate"])
async def test_missing_controller_fails_the_query(scene: Scene, call: str):
    query = scene.asks("q")
    await scene.finds("q", "b")
    await scene.opened("q~1")
    scene.controller.fails[call] = Unavailable("gone")
    scene.searches["q"].finds("a", final=False)
    if call == "speculate":
        await scene.given_back("q~1")
        await eventually(lambda: scene.controller.calls[-1] == "speculate")
        scene.searches["q"].finds("a", final=False)
    with pytest.raises(Unavailable):
        await query.task
    await scene.at_rest()
    assert list(scene.controller.outcomes) == ["q~1"]


async def test_failed_search_drops_the_guess(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    (await scene.opened("q~1")).says(1)
    scene.searches["q"].stages.put_nowait(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}


async def test_late_guess_means_ordinary_admission(scene: Scene):
    query = scene.asks("q", first_step_timeout_s=0.05)
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    await eventually(lambda: guess.closed)
    scene.answers_by_itself = True
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


async def test_timeout_while_a_guess_runs(scene: Scene):
    query = scene.asks("q", query_timeout_s=0.1)
    await scene.finds("q", "a")
    (await scene.opened("q~1")).says(1)
    with pytest.raises(DeadlineExceeded):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}
