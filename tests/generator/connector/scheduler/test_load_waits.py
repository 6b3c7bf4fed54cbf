"""How long requests wait for their loads, as an engine that computes nothing else shows it."""

import pytest

pytest.importorskip("vllm")

from reads import piece_of
from test_scheduler_side import Engine

from generator.connector.scheduler.load_waits import LoadWaits
from generator.connector.step_jobs import BlockCopy, Load, LoadResult, Piece
from protocol.kv import KvRead, LostCopy, PeerCopy
from protocol.tiers import Tier

TOKENS = 16


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engine(clock):
    engine = Engine()
    engine.side._waits = LoadWaits(engine.side._paging.page_tokens, clock)
    return engine


def load(engine, name="q", source=Tier.DISK):
    request = engine.admit(name, source, None)
    assert engine.side.match(request, 0) == (TOKENS, True)
    engine.allocate(request, external=TOKENS)
    return request


def reads(engine, request, **results):
    """What the engine reports to have been read, after the end of the load in the step under way, and a first token."""
    engine.results(loads={"q": LoadResult(0.5, **results)})
    engine.step(q=2)
    request.num_output_tokens = 1
    engine.results()
    return engine.side.report().prefilled["q"].reads


def test_a_load_is_timed_until_its_request_computes(engine, clock):
    request = load(engine)
    engine.step()
    clock.now += 0.75
    (read,) = reads(engine, request)
    assert (read.location, read.tier, read.tokens, read.seconds, read.failed) == ("", Tier.DISK, TOKENS, 0.75, False)


def test_a_load_beside_a_computing_step_is_not_timed(engine):
    engine.admit("other", None, None)
    engine.step(other=18)
    assert reads(engine, load(engine)) == ()


def test_a_load_that_waits_for_others_steps_is_not_timed(engine):
    request = load(engine)
    engine.step()
    engine.results()
    engine.admit("other", None, None)
    engine.step(other=18)
    assert reads(engine, request) == ()


def test_a_failed_load_is_not_timed(engine):
    request = load(engine)
    engine.step()
    assert reads(engine, request, lost=(LostCopy("k1", Tier.DISK),), failed=True) == ()


def test_loads_beside_each_other_are_not_timed(engine):
    request = load(engine)
    other = load(engine, "other")
    engine.step()
    engine.results(loads={"other": LoadResult(0.5)})
    engine.step(other=2)
    other.num_output_tokens = 1
    assert reads(engine, request) == ()


def test_an_ended_request_is_forgotten(engine):
    engine.side.complete(load(engine))
    engine.step()
    # Another request takes its name.
    assert engine.side._waits.computes(["q"]) is None


class TestWhatIsTimed:
    """Loads that bring all of a prefix from one tier of this location."""

    def waited(self, *pieces: Piece, alone: bool = True, **others) -> KvRead | None:
        waits = LoadWaits(4, Clock())
        waits.begin(Load("q", pieces, **others), alone=alone)
        ended = waits.computes(["q"])
        return ended[1] if ended is not None else None

    def piece(self, tier: Tier = Tier.DISK, peer: PeerCopy | None = None) -> Piece:
        return piece_of("k", tier, 0, (1, 2, 3), None, peer)

    def test_one_tier_is(self):
        assert self.waited(self.piece(), self.piece()) == KvRead("", 24, 0.0, tier=Tier.DISK)

    def test_nothing_is_beside_other_work(self):
        assert self.waited(self.piece(), alone=False) is None

    def test_several_tiers_are_not(self):
        assert self.waited(self.piece(), self.piece(Tier.HOST)) is None

    def test_copies_within_the_engine_are_not(self):
        assert self.waited(copies=(BlockCopy(1, 2),)) is None

    def test_reads_at_peers_are_not(self):
        assert self.waited(self.piece(), self.piece(peer=PeerCopy("far", ("far:1",), Tier.DISK))) is None

    def test_loads_before_a_composition_are_not(self):
        assert self.waited(self.piece(), composition=object()) is None
