"""Which loads from host memory are part of the step that computes, on the scheduler's side."""

import pytest

pytest.importorskip("vllm")

from test_scheduler_side import Engine

from generator.connector.messages import Prefilled
from generator.connector.step_jobs import JobResults, StepResults
from protocol.kv import LostCopy, Pages
from protocol.plans import PlannedNode
from protocol.tiers import Tier

COPIES = {"k0": Pages((0, 1), 1), "k1": Pages((2, 3), 2)}


class Host:
    """Host memory without the copies in ``gone``, and with ``room``."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.room = True
        self.refuses = False
        self.busy = False
        self.held: dict[str, dict[str, Pages]] = {}

    def has_room(self, pages):
        return self.room

    def hold(self, request_id, copies):
        if self.refuses:
            return None
        missing = [key for key in copies if key in self.gone]
        if not missing:
            self.held[request_id] = dict(copies)
        return missing

    def keep(self, request_ids):
        self.held = {name: copies for name, copies in self.held.items() if name in request_ids}


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def engine(host):
    engine = Engine()
    engine.side.bind(engine.pool, host)
    return engine


def admit(engine, name="q", sources=(Tier.HOST, Tier.HOST), pages=COPIES):
    nodes = [PlannedNode(key, 8, source, None, pages.get(key)) for key, source in zip(COPIES, sources, strict=True)]
    return engine.admit(name, None, None, nodes=tuple(nodes))


def test_what_is_held_loads_within_the_step(engine, host):
    request = admit(engine)
    assert engine.side.match(request, 0) == (16, False)
    assert host.held == {"q": COPIES}
    blocks = engine.allocate(request, external=16)
    jobs = engine.step(q=2)
    assert not jobs.loads
    assert not jobs.idle
    (load,) = jobs.step_loads
    assert [(piece.copy.node, piece.first, piece.blocks) for piece in load.pieces] == [
        ("k0", 0, tuple(blocks[:2])),
        ("k1", 0, tuple(blocks[2:4])),
    ]
    assert set(host.held) == {"q"}
    request.num_output_tokens = 1
    engine.results(step_load_s={"q": 0.25})
    assert engine.side.report().prefilled == {"q": Prefilled({Tier.HOST: 16}, 250.0)}


def test_a_load_of_a_request_that_ends_at_once_is_reported(engine):
    request = admit(engine)
    engine.side.match(request, 0)
    blocks = engine.allocate(request, external=16)
    engine.step(q=2)
    request.num_output_tokens = 1
    engine.end(request, blocks)
    engine.side.update(StepResults({0: JobResults(step_load_s={"q": 0.25})}))
    assert engine.side.report().prefilled == {"q": Prefilled({Tier.HOST: 16}, 250.0)}


def test_a_copy_that_is_gone_is_found_out_before_it_is_offered(engine, host):
    host.gone.add("k1")
    request = admit(engine)
    assert engine.side.match(request, 0) == (8, False)
    assert host.held == {"q": {"k0": COPIES["k0"]}}
    engine.allocate(request, external=8)
    engine.step(q=10)
    request.num_output_tokens = 1
    report = engine.side.report()
    assert report.prefilled["q"].loaded == {Tier.HOST: 8}
    assert report.lost == (LostCopy("k1", Tier.HOST),)


def test_nothing_is_offered_if_the_first_copy_is_gone(engine, host):
    host.gone.add("k0")
    assert engine.side.match(admit(engine), 0) == (0, False)
    assert not host.held


def test_what_is_offered_and_not_scheduled_is_let_go(engine, host):
    engine.side.match(admit(engine), 0)
    engine.step(other=1)
    assert not host.held


@pytest.mark.parametrize(
    ("sources", "pages"),
    [
        pytest.param((Tier.HOST, Tier.DISK), COPIES, id="a node is on disk"),
        pytest.param((Tier.HOST, Tier.HOST), {"k0": COPIES["k0"]}, id="a node has no pages"),
        pytest.param((Tier.HOST, Tier.HOST), COPIES | {"k1": Pages((2,), 2)}, id="a node has too few pages"),
    ],
)
def test_what_cannot_be_held_loads_in_the_background(engine, host, sources, pages):
    request = admit(engine, sources=sources, pages=pages)
    assert engine.side.match(request, 0) == (16, True)
    assert not host.held
    engine.allocate(request, external=16)
    assert [load.request_id for load in engine.step().loads] == ["q"]


def test_a_load_without_room_in_the_step_runs_in_the_background(engine, host):
    host.room = False
    request = admit(engine)
    assert engine.side.match(request, 0) == (16, True)
    engine.allocate(request, external=16)
    jobs = engine.step()
    assert jobs.loads
    assert not jobs.step_loads


def test_a_load_runs_in_the_background_if_the_locks_are_refused(engine, host):
    host.refuses = True
    request = admit(engine)
    assert engine.side.match(request, 0) == (16, True)
    engine.allocate(request, external=16)
    assert engine.step().loads


def test_the_engine_keeps_stepping_until_what_it_has_copied_is_let_go(engine, host):
    assert not engine.side.busy
    host.busy = True
    assert engine.side.busy


def test_only_what_the_engine_has_not_found_itself_is_held(engine, host):
    request = admit(engine)
    assert engine.side.match(request, 8) == (8, False)
    assert host.held == {"q": {"k1": COPIES["k1"]}}


def test_held_copies_stand_beside_the_engines_own(engine, host):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    request = admit(engine, sources=(Tier.GPU, Tier.HOST))
    assert engine.side.match(request, 0) == (16, False)
    assert host.held == {"q": {"k1": COPIES["k1"]}}
    blocks = engine.allocate(request, external=16)
    jobs = engine.step(q=2)
    assert [copy.target for copy in jobs.copies] == blocks[:2]
    assert [piece.copy.node for piece in jobs.step_loads[0].pieces] == ["k1"]
