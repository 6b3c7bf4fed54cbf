"""The scheduler side over vLLM's own block pool, with a simulated worker side."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from small_pool import BLOCKS, PAGE, small_pool

from generator.connector.messages import Prefilled, RequestMessage
from generator.connector.scheduler_side import SchedulerSide
from generator.connector.step_jobs import LoadResult, StepResults
from protocol.kv import HeldNode, LostCopy, Move, ResidencyReport
from protocol.plans import PlannedNode
from protocol.tiers import Tier

CONTENTS = ("c0", "c1")


class Engine:
    """A scheduler side, and the blocks and steps of its engine."""

    def __init__(self) -> None:
        # Without the prefix cache, every node can be found.
        self.pool = small_pool()
        self.pool.enable_caching = False
        self.side = SchedulerSide(PAGE, "one", 4, 64)
        self.side.bind(self.pool)

    def admit(
        self, name: str, source: Tier | None, kept: Tier | None, prefix: str = "k", **message: object
    ) -> SimpleNamespace:
        """A request with two nodes of eight tokens, k0 and k1 by default, and a question of two."""
        nodes = tuple(PlannedNode(f"{prefix}{index}", 8, source, kept) for index in range(2))
        request = SimpleNamespace(
            request_id=name,
            num_tokens=18,
            num_prompt_tokens=18,
            num_computed_tokens=0,
            num_output_tokens=0,
            num_preemptions=0,
        )
        self.side.admit(request, RequestMessage(name, True, "n", CONTENTS, nodes, **message))
        return request

    def allocate(self, request: SimpleNamespace, external: int = 0) -> list[int]:
        blocks = [block.block_id for block in self.pool.get_new_blocks(5)]
        self.side.allocated(request, blocks, external)
        return blocks

    def step(self, **scheduled: int):
        output = SimpleNamespace(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
            preempted_req_ids=(),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
        )
        return self.side.step_jobs(output)

    def end(self, request: SimpleNamespace, blocks: list[int]) -> None:
        self.side.complete(request, blocks)
        self.pool.free_blocks([self.pool.blocks[block] for block in reversed(blocks)])

    def prefill(self, name: str, kept: Tier | None) -> list[int]:
        """Compute a request to its end. Returns its blocks."""
        request = self.admit(name, None, kept)
        assert self.side.match(request, 0) == (0, False)
        blocks = self.allocate(request)
        self.step(**{name: 18})
        request.num_computed_tokens, request.num_output_tokens = 18, 1
        self.end(request, blocks)
        return blocks


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_nodes_are_held_after_the_first_token(engine):
    engine.prefill("q", Tier.GPU)
    report = engine.side.report()
    assert report.prefilled == {"q": Prefilled({}, 0.0)}
    assert report.lost == ()
    # Two nodes of two blocks each are held.
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 4
    assert engine.side.report() is None


def test_held_nodes_are_loaded_from_the_gpu(engine):
    held = engine.prefill("first", Tier.GPU)
    engine.side.report()
    request = engine.admit("second", Tier.GPU, Tier.GPU)
    assert engine.side.match(request, 0) == (16, False)
    blocks = engine.allocate(request, external=16)
    (load,) = engine.step(second=2).loads
    assert [piece.held for piece in load.pieces] == [tuple(held[:2]), tuple(held[2:4])]
    assert [piece.blocks for piece in load.pieces] == [tuple(blocks[:2]), tuple(blocks[2:4])]
    engine.side.update(StepResults(loads={"second": LoadResult(0.5)}), set())
    request.num_output_tokens = 1
    assert engine.side.report().prefilled == {"second": Prefilled({Tier.GPU: 16}, 500.0)}


def test_loads_from_disk_run_in_the_background(engine):
    request = engine.admit("q", Tier.DISK, None)
    assert engine.side.match(request, 0) == (16, True)
    engine.allocate(request, external=16)
    jobs = engine.step()
    assert [load.background for load in jobs.loads] == [True]
    assert jobs.idle


def test_a_failed_load_is_lost_and_limits_the_cached_tokens(engine):
    request = engine.admit("q", Tier.HOST, None)
    assert engine.side.match(request, 0) == (16, False)
    blocks = engine.allocate(request, external=16)
    engine.step(q=2)
    engine.side.update(StepResults(loads={"q": LoadResult(0.0, (("k1", Tier.HOST),))}), {blocks[2]})
    request.num_output_tokens = 1
    report = engine.side.report()
    assert report.prefilled["q"].loaded == {Tier.HOST: 8}
    assert report.lost == (LostCopy("k1", Tier.HOST),)
    # The next match offers the nodes in front of the missing copy.
    assert engine.side.match(request, 0) == (8, False)


def test_a_copy_that_is_being_written_is_waited_for(engine):
    engine.prefill("first", Tier.HOST)
    request = engine.admit("second", Tier.HOST, None)
    assert engine.side.match(request, 0) == (None, False)
    jobs = engine.step()
    assert [(transfer.key, transfer.target) for transfer in jobs.transfers] == [("k0", Tier.HOST), ("k1", Tier.HOST)]
    engine.side.update(StepResults(transfers={transfer.number: True for transfer in jobs.transfers}), set())
    assert engine.side.match(request, 0) == (16, False)


def test_a_speculative_request_keeps_complete_nodes_only(engine):
    request = engine.admit("q", None, Tier.GPU, speculative=True)
    engine.side.match(request, 0)
    blocks = engine.allocate(request)
    engine.step(q=12)
    request.num_computed_tokens = 12
    engine.end(request, blocks)
    assert engine.side.busy
    report = engine.side.report()
    assert report.prefilled["q"].reached == 12
    assert report.lost == (LostCopy("k1", Tier.GPU),)
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 2
    assert not engine.side.busy


def test_held_nodes_are_released_if_a_request_needs_their_blocks(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    free = engine.pool.get_num_free_blocks()
    taken = engine.pool.get_new_blocks(free - 2)
    waiting = engine.admit("waiting", None, None, prefix="other")
    engine.step()
    assert engine.pool.get_num_free_blocks() == 6
    engine.pool.free_blocks(taken)
    waiting.num_output_tokens = 1
    assert set(engine.side.report().lost) == {LostCopy("k0", Tier.GPU), LostCopy("k1", Tier.GPU)}


def test_a_deleted_document_is_released_and_purged(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    message = RequestMessage("deletion", plan=False, forget=(("n", "c1"),))
    engine.side.admit(SimpleNamespace(request_id="deletion", num_tokens=1), message)
    (purge,) = engine.step().purges
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 2
    assert engine.side.report() is None
    engine.side.update(StepResults(purged={purge.number: 0}), set())
    assert engine.side.report().carried_out == {"deletion": ()}


def test_an_inquiry_answers_with_the_gpu_tier_and_the_others(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    engine.side.inquire("question")
    assert engine.side.busy
    assert engine.step().inquiries == ["question"]
    disk = ResidencyReport(Tier.DISK, ())
    engine.side.update(StepResults(held={"question": (disk,)}), set())
    nodes = (HeldNode("n", ("c0",), 8), HeldNode("n", CONTENTS, 8))
    assert engine.side.report().held == {"question": (ResidencyReport(Tier.GPU, nodes, "one"), disk)}
    assert not engine.side.busy


def test_a_plans_moves_start_when_it_is_admitted(engine):
    engine.prefill("first", Tier.GPU)
    moves = (Move("k1", 8, Tier.GPU, Tier.DISK),)
    engine.admit("second", None, None, moves=moves)
    assert [transfer.key for transfer in engine.step().transfers] == ["k1"]
