"""Generating while the search goes on: no token leaves before the documents are final."""

import asyncio

import pytest
from example_counts import examples
from gateway_fakes import ANSWER, Stack, eventually, whenever_possible
from gateway_requests import without_chance
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_scene import Scene, Stream

from gateway.query.speculation_start import SpeculationStart
from gateway.wire import events
from protocol.errors import EngineDied
from protocol.graph import GraphMode, Path, Source, Subgraph
from protocol.plans import PlanOutcome
from protocol.tiers import Tier

COMPLETED, FAILED, CANCELLED = PlanOutcome


async def test_ragcache_figure_11(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "13")
    first = await scene.opened("q~1")
    first.says(2)
    await scene.finds("q", "12")
    second = await scene.opened("q~2")
    await scene.given_back("q~1")
    second.says(2)
    await scene.finds("q", "12")
    assert query.silent
    assert scene.controller.calls == ["start", "speculate", "start", "speculate"], "unchanged documents need no call"
    await scene.finds("q", "12", final=True)
    assert scene.controller.calls[4:] == ["keep"]
    await eventually(lambda: query.events[-1:] and isinstance(query.events[-1], events.OutputTextDelta))
    second.says(1, finish=True)
    assert await query.answer() == "12 12 12 "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q~2": COMPLETED}


async def test_next_query_hits_the_documents_of_a_confirmed_guess(scene: Scene):
    """Even if the dropped guess before it had reserved them."""
    query = scene.asks("q")
    await scene.finds("q", "13")
    await scene.opened("q~1")
    await scene.finds("q", "12")
    (await scene.opened("q~2")).says(2, finish=True)
    await scene.finds("q", "12", final=True)
    await query.answer()
    await scene.at_rest()
    scene.answers_by_itself = True
    again = scene.asks("again")
    await scene.finds("again", "12", final=True)
    await again.answer()
    assert [node.source for node in scene.controller.plans["again"].nodes] == [Tier.GPU] * 3


async def test_no_token_leaves_before_the_documents_are_final(scene: Scene):
    query = scene.asks("q", include_stages=True)
    await scene.finds("q", "ab")
    stream = await scene.opened("q~1")
    stream.says(5, finish=True)
    await scene.finds("q", "ab")
    await eventually(lambda: stream.closed)
    assert query.silent
    await scene.finds("q", "ab", final=True)
    assert await query.answer() == "ab " * 5
    kinds = [type(event) for event in query.events]
    assert kinds[:5] == [events.QueryCreated, *[events.RetrievalStage] * 3, events.RetrievalCompleted]


async def test_reply_has_final_documents_and_speculation_timings(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "b")
    (await scene.opened("q~1")).says(1)
    await scene.finds("q", "ab")
    (await scene.opened("q~2")).says(2, finish=True)
    await scene.finds("q", "ab", final=True)
    await query.answer()
    reply = query.events[-1].response
    assert [result.document_id for result in reply.results] == ["a", "b"]
    assert [cited.document_id for cited in reply.citations] == ["a", "b"]
    said = reply.timings.speculation
    assert (said.outcome, said.generations) == ("confirmed", 2)
    assert 0 < said.began_ms <= reply.timings.total_ms


@pytest.mark.parametrize("final", ["ab", "ba", "a", "abc", "x"])
async def test_other_final_documents_mean_ordinary_admission(scene: Scene, final: str):
    query = scene.asks("q")
    await scene.finds("q", "ac")
    guess = await scene.opened("q~1")
    guess.says(3, finish=True)
    await scene.finds("q", final, final=True)
    stream = await scene.opened("q")
    stream.says(2, finish=True)
    assert await query.answer() == f"{final} " * 2
    await scene.at_rest()
    assert scene.controller.calls == ["start", "speculate", "admit"], "admission ends the guess in the controller"
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}
    assert query.events[-1].response.timings.speculation.outcome == "dropped"


def graph_of(*entities: str) -> Subgraph:
    return Subgraph(
        paths=tuple(Path(("Alice", name), ("-like->",), (Source("a", 0, "hash"),), 0.5) for name in entities)
    )


async def test_a_guess_without_the_facts_of_the_graph_is_not_confirmed(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "ab")
    guess = await scene.opened("q~1")
    guess.says(3, finish=True)
    await scene.finds("q", "ab", final=True, graph=graph_of("Titanic"))
    stream = await scene.opened("q")
    assert stream.plan.prompt.paths == (0,)
    assert stream.plan.prompt.prefix == guess.plan.prompt.prefix, "the documents that it computed are reused"
    stream.says(2, finish=True)
    assert await query.answer() == "ab ab "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


@pytest.mark.parametrize(("final", "confirmed"), [("Titanic", True), ("Rose", False)])
async def test_a_guess_is_confirmed_with_the_same_facts_only(scene: Scene, final: str, confirmed: bool):
    query = scene.asks("q")
    await scene.finds("q", "ab", graph=graph_of("Titanic"))
    (await scene.opened("q~1")).says(3, finish=True)
    await scene.finds("q", "ab", final=True, graph=graph_of(final))
    if not confirmed:
        (await scene.opened("q")).says(1, finish=True)
    assert await query.answer() == ("ab ab ab " if confirmed else "ab ")
    await scene.at_rest()
    (told,) = query.events[-1].response.graph.paths
    assert told.entities == ("Alice", final)


async def test_the_answer_of_a_guess_in_trees_is_compared_with_one_from_facts_in_full(scene: Scene):
    scene.controller.trees = True
    query = scene.asks("q")
    await scene.finds("q", "ab", graph=graph_of("Titanic"))
    guess = await scene.opened("q~1")
    guess.says(3, finish=True)
    await scene.finds("q", "ab", final=True, graph=graph_of("Titanic"))
    text = await query.answer()
    noted = await asyncio.wait_for(scene.approximate.next(), 10)
    assert (noted.query_id, noted.approximation, noted.text) == ("q", "dependency", text)
    assert (noted.prompt.trees, noted.prompt.in_trees) == (None, guess.plan.prompt)


async def test_guess_waits_for_a_stage_worth_it(scene: Scene):
    """Searches of this kind are final after five of nine stages, and the engine releases guesses slowly."""
    kind = ("default", "default", None, None, GraphMode.NAIVE, 3, True, True)
    for _ in range(40):
        scene.start.record_search(kind, 5 / 9, 1.0)
        SpeculationStart.record_ending(scene.start, 9.0)
    query = scene.asks("q")
    for documents in "aab":
        await scene.finds("q", documents)
    assert scene.controller.calls == []
    await scene.finds("q", "b")
    await scene.finds("q", "c")
    assert scene.controller.calls == ["start", "speculate"]
    (await scene.opened("q~1")).says(finish=True)
    before = scene.start.odds(kind, 4 / 9)
    await scene.finds("q", "c", final=True)
    assert await query.answer() == "c "
    assert scene.start.odds(kind, 4 / 9) < before, "its documents were final after five stages again"


async def test_search_in_one_stage_is_not_learnt(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a", final=True)
    (await scene.opened("q")).says(finish=True)
    await query.answer()
    assert scene.start.odds(("default", "default", None, None, GraphMode.NAIVE, 3, True, True), 0.5) == 0.5


async def test_release_time_is_learnt_from_wrong_guesses_only(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    broken = await scene.opened("q~1")
    broken.breaks(EngineDied("gone"))
    await eventually(lambda: broken.closed)
    await scene.finds("q", "b")
    await scene.opened("q~2")
    assert scene.ended_ms == []
    await scene.finds("q", "c")
    (await scene.opened("q~3")).says(finish=True)
    await scene.finds("q", "c", final=True)
    await query.answer()
    (ended_ms,) = scene.ended_ms
    assert 0 <= ended_ms <= query.events[-1].timings.total_ms


async def test_empty_stage_drops_the_guess(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.opened("q~1")
    await scene.finds("q", "")
    await scene.given_back("q~1")
    await scene.finds("q", "b")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "
    assert scene.controller.calls == ["start", "speculate", "drop", "start", "speculate", "keep"]


async def test_search_in_one_stage_only_asks_for_admission(scene: Scene):
    scene.answers_by_itself = True
    query = scene.asks("q")
    await scene.finds("q", "ab", final=True)
    assert await query.answer() == "ab ab "
    assert scene.controller.calls == ["admit"]
    assert query.events[-1].response.timings.speculation is None


async def test_no_room_means_ordinary_admission():
    scene = Scene(max_running=1)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    running = await scene.opened("other")
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.finds("q", "a", final=True)
    assert scene.controller.calls == ["admit", "wait", "admit"]
    running.says(1, finish=True)
    await other.answer()
    (await scene.opened("q")).says(1, finish=True)
    assert await query.answer() == "a "
    await scene.at_rest()


async def test_room_lost_during_the_call_means_no_guess(scene: Scene):
    scene.controller.leasing.clear()
    query = scene.asks("q")
    scene.searches["q"].finds("a", final=False)
    await scene.controller.at_lease.wait()
    others = [scene.asks(f"other {number}") for number in range(9)]
    for number in range(9):
        await scene.finds(f"other {number}", "x", final=True)
        await scene.opened(f"other {number}")
    scene.controller.leasing.set()
    await scene.finds("q", "a")
    assert "q~1" not in scene.controller.plans
    for number, other in enumerate(others):
        scene.streams[f"other {number}"].says(1, finish=True)
        await other.answer()
    await scene.finds("q", "a")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a "


async def test_guess_gives_way_to_a_request():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(1)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    stream = await scene.opened("other")
    assert scene.controller.plans["other"].ends == ("q~1",)
    await eventually(lambda: guess.closed)
    await scene.finds("q", "a", final=True)
    assert query.silent or isinstance(query.events[-1], events.RetrievalCompleted)
    stream.says(2, finish=True)
    assert await other.answer() == "x x "
    (await scene.opened("q")).says(2, finish=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "other": COMPLETED, "q": COMPLETED}
    assert scene.counted == {"gave_way": 1}


async def test_guess_restarts_after_giving_way():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.opened("q~1")
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    (await scene.opened("other")).says(1, finish=True)
    await other.answer()
    await eventually(lambda: scene.streams["q~1"].closed and "other" in scene.controller.outcomes)
    await scene.finds("q", "a")
    await scene.given_back("q~1")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a "
    await scene.at_rest()


async def test_confirmed_guess_does_not_give_way():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    stream = await scene.opened("q~1")
    await scene.finds("q", "a", final=True)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    assert (await scene.controller.stats()).queued == 1
    stream.says(1, finish=True)
    assert await query.answer() == "a "
    (await scene.opened("other")).says(1, finish=True)
    assert await other.answer() == "x "
    assert scene.controller.plans["other"].ends == ()
    await scene.at_rest()


searches = st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab", "ba", "abc"]), st.integers(0, 3)), max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(
    stages=searches,
    final=st.sampled_from(["a", "b", "ab", "ba", "abc"]),
    breaks_at=st.none() | st.integers(0, 4),
    other_at=st.none() | st.integers(0, 4),
    max_running=st.integers(1, 3),
)
def test_answers_use_the_final_documents(stages, final, breaks_at, other_at, max_running):
    async def play():
        scene = Scene(max_running=max_running)
        query = scene.asks("q")
        other = None
        for number, (documents, words) in enumerate(stages):
            await scene.finds("q", documents)
            for stream in guesses(scene):
                stream.says(words, finish=words == 3)
                if number == breaks_at:
                    stream.breaks(EngineDied("broken"))
                    # If it were confirmed first, the query would fail: there is no other instance for a retry.
                    await eventually(lambda stream=stream: stream.closed)
            if number == other_at:
                other = scene.asks("other")
                await scene.finds("other", "x", final=True)
                await scene.opened("other")
            assert query.silent
        if other is not None:
            scene.streams["other"].says(1, finish=True)
            assert await other.answer() == "x "
        scene.answers_by_itself = True
        await scene.finds("q", final, final=True)
        for stream in guesses(scene):
            stream.says(1, finish=True)
        words = (await query.answer()).split()
        assert set(words) == {final}
        retrieved = [isinstance(event, events.RetrievalCompleted) for event in query.events].index(True)
        deltas = [isinstance(event, events.OutputTextDelta) for event in query.events]
        assert deltas.index(True) > retrieved
        await scene.at_rest()
        answered = [plan for plan, outcome in scene.controller.outcomes.items() if outcome is COMPLETED]
        (plan,) = (plan for plan in answered if plan != "other")
        assert scene.streams[plan].documents == final

    asyncio.run(asyncio.wait_for(play(), 10))


def guesses(scene: Scene) -> list[Stream]:
    """The open streams of the query's guesses."""
    return [stream for plan_id, stream in scene.streams.items() if plan_id.startswith("q~") and not stream.closed]


async def ask(served, **body: object) -> dict:
    answer = await served.client.post("/query", json={"query": "x", "top_k": 1} | body)
    assert answer.status_code == 200
    return answer.json()


@pytest.mark.parametrize(("top_k", "outcome"), [(1, "confirmed"), (3, "dropped")])
async def test_json_reply_is_the_same_as_without_speculation(served, stack: Stack, top_k: int, outcome: str):
    without = await ask(served, top_k=top_k)
    assert without["timings"]["speculation"] is None
    stack.controller.decide = whenever_possible
    reply = await ask(served, top_k=top_k)
    assert without_chance(reply) == without_chance(without)
    assert reply["output_text"] == "".join(ANSWER)
    assert reply["timings"]["speculation"]["outcome"] == outcome
    assert len(stack.controller.admitted) == (1 if outcome == "confirmed" else 2)
