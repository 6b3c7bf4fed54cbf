"""Ways to serve, over engines that answer at once: who is asked, how often, and what is compared."""

from collections import Counter

import pytest
from typer.testing import CliRunner

from cachectl.settings import ControllerSettings
from protocol.errors import EngineDied
from protocol.generation import EngineInfo, GenerationStep, PrefillResult
from protocol.kv import KvMemory, Peers
from protocol.parts import Generator
from ragtree_lab.sharing.load import Load
from ragtree_lab.sharing.readdressed_engine import ReaddressedEngine
from ragtree_lab.sharing.throughput import Point, ThroughputTurns
from ragtree_lab.sharing.ways import WAYS
from services.cli.app import app

LOAD = Load(documents=6, document_tokens=20, clients=3, queries=5, turns=2, answer_tokens=1, hot_share=0.229)
MEMORY = KvMemory("fingerprint", "boot", 16, 100, 1, 1, 1, 1.0, 1.0, peers=Peers(("127.0.0.1:1",), 1.0))


class Engine(Generator):
    """Answers each plan with one token, and notes whose it was, and how often it dropped everything."""

    def __init__(self, kv: KvMemory | None = None) -> None:
        self._info = EngineInfo("model", "fake", 8192, kv=kv)
        self.plans = []
        self.dropped_at = []

    async def info(self):
        return self._info

    async def carry_out(self, orders):
        if orders.everything:
            self.dropped_at.append(len(self.plans))
        return ()

    async def residency(self):
        return ()

    async def stream(self, plan, sampling):
        self.plans.append(plan)
        yield GenerationStep("x", 1, PrefillResult(plan.prompt.token_count, 0, 1.0), "stop")


def turns(tmp_path, ways, *points: Point) -> ThroughputTurns:
    return ThroughputTurns(ControllerSettings(), tmp_path, LOAD, ways, points or [Point(1, 0.1)])


async def test_all_ways_get_the_same_queries_and_begin_with_empty_caches(tmp_path):
    first, second = Engine(), Engine()
    engines = {"first": first, "second": second}
    (row,) = await turns(tmp_path, list(WAYS)).run(engines, 1, lambda *_: None)
    assert list(row.ways) == list(WAYS)
    # In each turn, five queries fill the caches, and five count.
    asked = Counter(plan.namespace for engine in engines.values() for plan in engine.plans)
    assert list(asked.values()) == [10] * len(WAYS) * LOAD.turns
    # Only between two ways.
    assert len(first.dropped_at) == len(second.dropped_at) == len(WAYS) * LOAD.turns
    plans = [plan for engine in engines.values() for plan in engine.plans]
    questions = {
        namespace: tuple(sorted(plan.prompt.segments[-1].key for plan in plans if plan.namespace == namespace))
        for namespace in asked
    }
    assert len(set(questions.values())) == LOAD.turns


@pytest.mark.parametrize(("way", "second_answers"), [("alone", True), ("one", False), ("generator", False)])
async def test_only_machines_that_answer_are_asked(tmp_path, way, second_answers):
    engines = {"first": Engine(), "second": Engine()}
    await turns(tmp_path, [way]).run(engines, 1, lambda *_: None)
    assert engines["first"].plans
    assert bool(engines["second"].plans) == second_answers


async def test_each_point_has_its_own_prompts_and_ratios(tmp_path):
    engines = {"first": Engine(), "second": Engine()}
    points = [Point(1, 0.0), Point(2, None)]
    one, two = await turns(tmp_path, ["generator", "one"], *points).run(engines, 1, lambda *_: None)
    assert [(row.top_k, row.prepare_after_s) for row in (one, two)] == [(1, 0.0), (2, None)]
    lengths = [len(plan.prompt.documents) for plan in engines["first"].plans]
    assert lengths == sorted(lengths)
    assert set(lengths) == {1, 2}
    for row in (one, two):
        rates = {way: served.queries_per_s for way, served in row.ways.items()}
        assert row.generator_over_one == rates["generator"] / rates["one"]
        assert row.generator_over_alone is row.shared_over_alone is None
        assert all(served.asking_share > 0 for served in row.ways.values())


async def test_queries_that_arrive_at_a_rate_are_asked_on_its_schedule(tmp_path):
    engines = {"first": Engine(), "second": Engine()}
    points = [Point(1, 0.1, 50.0), Point(1, 0.1)]
    arriving, asked = await turns(tmp_path, ["one"], *points).run(engines, 1, lambda *_: None)
    assert (arriving.rate, asked.rate) == (50.0, None)
    # Four intervals of 20 ms lie between five queries.
    assert arriving.ways["one"].queries_per_s <= LOAD.queries / (0.02 * (LOAD.queries - 1))


async def test_a_query_without_an_answer_ends_the_measurement(tmp_path):
    class Failing(Engine):
        async def stream(self, plan, sampling):
            if len(self.plans) >= LOAD.queries:
                raise EngineDied("gone")
            async for step in super().stream(plan, sampling):
                yield step

    engines = {"first": Failing(), "second": Engine()}
    with pytest.raises(ValueError, match="5 of 5 queries were not answered"):
        await turns(tmp_path, ["one"], Point(1, 0.1, 50.0)).run(engines, 1, lambda *_: None)


async def test_a_readdressed_engine_serves_where_it_says_or_not_at_all():
    engine = Engine(MEMORY)
    for addresses in ((), ("127.0.0.1:2",)):
        seen = await ReaddressedEngine(engine, *addresses).info()
        assert seen.kv.peers == Peers(addresses, 1.0)
        assert (await engine.info()).kv == MEMORY


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--ways", "alone,together", "there is no way 'together'"),
        ("--prepare-after-s", "0,-1", "give numbers from 0 up"),
        ("--prepare-after-s", "soon", "give numbers from 0 up"),
        ("--rate", "0", "give positive numbers"),
        ("--top-k", "0", "give numbers from 1 up"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(option, value, told):
    ran = CliRunner().invoke(app, ["bench", "sharing", option, value])
    assert ran.exit_code == 2
    assert told in ran.output
