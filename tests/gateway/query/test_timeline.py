"""The timeline of a query."""

import asyncio

import pytest
from gateway_fakes import Stack, whenever_possible
from sse_reading import events_of, only_terminal

from gateway.query.timeline import Timeline, TimelineEntry
from protocol.generation import PrefillResult
from protocol.tiers import Tier


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def test_stages_are_consecutive():
    clock = Clock()
    timeline = Timeline(clock)
    for stage, clock.now_ms in ((1, 5.0), (2, 12.0)):
        timeline.stage(stage, of=2)
    assert timeline.entries == (
        TimelineEntry("retrieval_stage", 0.0, 5.0, "stage 1 of 2"),
        TimelineEntry("retrieval_stage", 5.0, 7.0, "stage 2 of 2"),
    )


def test_entries_are_sorted_by_start():
    clock = Clock()
    timeline = Timeline(clock)
    clock.now_ms = 30.0
    timeline.moment("first_token")
    timeline.queued(10.0, overtakes=0)
    assert [(entry.name, entry.at_ms, entry.duration_ms) for entry in timeline.entries] == [
        ("queue", 10.0, 20.0),
        ("first_token", 30.0, None),
    ]


def test_engine_phases_end_with_the_first_step():
    timeline = Timeline(Clock())
    prefill = PrefillResult(100, 60, prefill_ms=40.0, kv_load_ms=15.0, loaded={Tier.GPU: 0, Tier.HOST: 60})
    timeline.prefilled(prefill, asked_ms=10.0, ended_ms=90.0)
    assert timeline.entries == (
        TimelineEntry("kv_load", 50.0, 15.0, "60 from host"),
        TimelineEntry("prefill", 50.0, 40.0, "60 of 100 tokens cached"),
    )


def test_engine_phases_never_start_before_the_call():
    timeline = Timeline(Clock())
    timeline.prefilled(PrefillResult(10, 4, prefill_ms=40.0, kv_load_ms=35.0), asked_ms=5.0, ended_ms=30.0)
    assert timeline.entries == (
        TimelineEntry("kv_load", 5.0, 25.0),
        TimelineEntry("prefill", 5.0, 25.0, "4 of 10 tokens cached"),
    )


async def timeline_of(served, **body) -> list[dict]:
    reply = await served.client.post("/query", json={"query": "Why?", "include": ["timeline"], **body})
    return reply.json()["timeline"]


async def test_timeline_is_sent_on_request_only(served):
    plain = (await served.client.post("/query", json={"query": "Why?"})).json()
    assert "timeline" not in plain
    assert await timeline_of(served)


async def test_timeline_of_a_query(served):
    entries = await timeline_of(served)
    assert [entry["name"] for entry in entries] == [
        "retrieval_stage", "retrieval_stage", "queue", "prefill", "first_token", "decode", "end",
    ]  # fmt: skip
    assert [entry.get("detail") for entry in entries[:3]] == ["stage 1 of 2", "stage 2 of 2", "overtakes: 2"]
    assert entries[5]["detail"] == "6 tokens"
    ends = [entry["at_ms"] + entry.get("duration_ms", 0) for entry in entries]
    assert max(ends) == ends[-1] == entries[-1]["at_ms"]
    assert ["duration_ms" in entry for entry in entries] == [*[True] * 4, False, True, False]


async def test_timeline_of_a_wrong_guess(served, stack: Stack):
    stack.controller.decide = whenever_possible
    entries = await timeline_of(served, top_k=3)
    (guess,) = [entry for entry in entries if entry["name"] == "speculation"]
    assert guess["detail"] == "wrong"
    assert "queue" in [entry["name"] for entry in entries]


async def test_timeline_of_a_confirmed_guess_has_no_queue(served, stack: Stack):
    stack.controller.decide = whenever_possible
    entries = await timeline_of(served, top_k=1)
    (guess,) = [entry for entry in entries if entry["name"] == "speculation"]
    assert guess["detail"] == "confirmed"
    assert "queue" not in [entry["name"] for entry in entries]


@pytest.mark.parametrize("held", ["second_stage", "queue"])
async def test_timeline_shows_the_slow_phase(served, stack: Stack, held: str):
    stack.phases.held.add(held)
    asking = asyncio.create_task(timeline_of(served))
    await stack.phases.reached[held].wait()
    await asyncio.sleep(0.05)
    stack.phases.released[held].set()
    entries = await asking
    longest = max((entry for entry in entries if "duration_ms" in entry), key=lambda entry: entry["duration_ms"])
    assert longest["duration_ms"] >= 50
    assert longest.get("detail") == {"second_stage": "stage 2 of 2", "queue": "overtakes: 2"}[held]


async def test_event_has_the_same_timeline(served):
    body = {"query": "Why?", "stream": True, "include": ["timeline"]}
    completed = only_terminal(events_of((await served.client.post("/query", json=body)).text))
    assert completed["response"]["timeline"][-1]["name"] == "end"
