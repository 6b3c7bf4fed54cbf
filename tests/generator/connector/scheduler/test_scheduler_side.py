"""The scheduler side over vLLM's own block pool, with a simulated worker side."""

import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from plan_messages import plan_message
from small_pool import BLOCKS, PAGE, small_pool

from generator.connector.messages import Prefilled, RequestMessage
from generator.connector.scheduler.scheduler_side import SchedulerSide
from generator.connector.step_jobs import BlockCopy, JobResults, LoadResult, StepResults
from generator.tiers.base import StoredNode, TierContents
from protocol.kv import HeldNode, KvNode, LostCopy, Move, Orders, Paging, ResidencyReport
from protocol.plans import PlannedNode
from protocol.tiers import Tier

CONTENTS = ("c0", "c1")


class Request(SimpleNamespace):
    """What the scheduler side reads of a request."""


class Engine:
    """A scheduler side, and the blocks and steps of its engine."""

    def __init__(self, ranks: int = 1) -> None:
        # Without the prefix cache, every node can be found.
        self.pool = small_pool()
        self.pool.enable_caching = False
        self.side = SchedulerSide(Paging(PAGE), "one", 4, 64, ranks)
        self.side.bind(self.pool)

    def admit(
        self, name: str, source: Tier | None, kept: Tier | None, prefix: str = "k", **message: object
    ) -> "Request":
        """A request with two nodes of eight tokens, k0 and k1 by default, and a question of two."""
        nodes = message.pop("nodes", None) or tuple(
            PlannedNode(f"{prefix}{index}", 8, source, kept) for index in range(2)
        )
        request = Request(
            request_id=name,
            num_tokens=18,
            num_prompt_tokens=18,
            num_computed_tokens=0,
            num_output_tokens=0,
            num_preemptions=0,
        )
        self.side.admit(request, plan_message(name, "n", CONTENTS, nodes, **message))
        return request

    def allocate(self, request: SimpleNamespace, external: int = 0) -> list[int]:
        blocks = [block.block_id for block in self.pool.get_new_blocks(5)]
        self.side.allocated(request, [blocks], external)
        return blocks

    def step(self, preempted: tuple[str, ...] = (), **scheduled: int):
        output = SimpleNamespace(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[]
            ),
            preempted_req_ids=preempted,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
        )
        return self.side.step_jobs(output)

    def results(self, **results: object) -> None:
        """The results of the engine's only rank, at the end of a step."""
        self.side.update(StepResults({0: JobResults(**results)}))
        self.side.end_step()

    def end(self, request: SimpleNamespace, blocks: list[int]) -> None:
        self.side.complete(request)
        self.pool.free_blocks([self.pool.blocks[block] for block in reversed(blocks)])

    def prefill(self, name: str, kept: Tier | None, reached: int | None = None) -> list[int]:
        """Compute a request to its end, or a speculative one until it has ``reached`` a token. Returns its blocks."""
        request = self.admit(name, None, kept, speculative=reached is not None)
        assert self.side.match(request, 0) == (0, False)
        blocks = self.allocate(request)
        computed = 18 if reached is None else reached
        self.step(**{name: computed})
        request.num_computed_tokens, request.num_output_tokens = computed, int(reached is None)
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
    jobs = engine.step(second=2)
    assert jobs.loads == []
    assert jobs.copies == [BlockCopy(*pair) for pair in zip(held[:4], blocks[:4], strict=True)]
    request.num_output_tokens = 1
    assert engine.side.report().prefilled == {"second": Prefilled({Tier.GPU: 16}, 0.0)}


def test_blocks_are_not_reused_before_they_are_copied(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.end_step()
    request = engine.admit("second", Tier.GPU, None)
    engine.side.match(request, 0)
    engine.allocate(request, external=16)
    engine.admit("third", None, None, moves=(Move("k0", 8, Tier.GPU, None), Move("k1", 8, Tier.GPU, None)))
    engine.step(second=2)
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 5 - 4
    engine.side.end_step()
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 5


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_loads_from_below_the_gpu_run_in_the_background(engine, tier):
    request = engine.admit("q", tier, None)
    assert engine.side.match(request, 0) == (16, True)
    engine.allocate(request, external=16)
    jobs = engine.step()
    assert [load.request_id for load in jobs.loads] == ["q"]
    assert jobs.idle
    engine.results(loads={"q": LoadResult(0.5)})
    request.num_output_tokens = 1
    assert engine.side.report().prefilled == {"q": Prefilled({tier: 16}, 500.0)}


def test_a_step_is_not_idle_while_an_earlier_one_computes(engine):
    """As with asynchronous scheduling: a step is scheduled before the results of the last one are known."""
    request = engine.admit("q", Tier.HOST, None)
    engine.side.match(request, 0)
    engine.allocate(request, external=16)
    engine.step(other=1)
    assert not engine.step().idle
    engine.side.end_step()
    assert engine.step().idle


def test_a_load_ends_when_every_rank_has_ended_it():
    engine = Engine(ranks=2)
    request = engine.admit("q", Tier.HOST, None)
    engine.side.match(request, 0)
    engine.allocate(request, external=16)
    engine.step()
    engine.side.update(StepResults({1: JobResults(loads={"q": LoadResult(0.5)})}))
    request.num_output_tokens = 1
    assert engine.step().idle
    engine.side.update(StepResults({0: JobResults(loads={"q": LoadResult(0.75)})}))
    assert engine.side.report().prefilled == {"q": Prefilled({Tier.HOST: 16}, 750.0)}


def test_a_failed_load_is_lost_and_limits_the_cached_tokens(engine):
    request = engine.admit("q", Tier.HOST, None)
    assert engine.side.match(request, 0) == (16, True)
    blocks = engine.allocate(request, external=16)
    engine.step()
    engine.results(loads={"q": LoadResult(0.0, (LostCopy("k1", Tier.HOST),))})
    # vLLM has found the first failed block.
    request.num_computed_tokens = 8
    engine.side.allocated(request, [blocks], 0)
    engine.step(q=10)
    request.num_computed_tokens, request.num_output_tokens = 18, 1
    report = engine.side.report()
    assert report.prefilled["q"].loaded == {Tier.HOST: 8}
    assert report.lost == (LostCopy("k1", Tier.HOST),)
    # The next match offers the nodes in front of the missing copy.
    assert engine.side.match(request, 0) == (8, True)


def test_a_copy_that_is_being_written_is_waited_for(engine):
    engine.prefill("first", Tier.HOST)
    request = engine.admit("second", Tier.HOST, None)
    assert engine.side.match(request, 0) == (None, False)
    jobs = engine.step()
    assert [(transfer.key, transfer.target) for transfer in jobs.transfers] == [("k0", Tier.HOST), ("k1", Tier.HOST)]
    engine.results(transfers={transfer.number: True for transfer in jobs.transfers})
    assert engine.side.match(request, 0) == (16, True)


def test_a_copy_that_a_speculative_request_does_not_reach_is_lost_at_once(engine):
    engine.prefill("q", Tier.HOST, reached=12)
    assert engine.side.report().lost == (LostCopy("k1", Tier.HOST),)
    finish(engine)
    assert engine.side.report().carried_out == {"q": (LostCopy("k1", Tier.HOST),)}


def test_a_speculative_request_keeps_complete_nodes_only(engine):
    engine.prefill("q", Tier.GPU, reached=12)
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
    message = RequestMessage("deletion", orders=Orders(forget=(("n", "c1"),)))
    engine.side.admit(SimpleNamespace(request_id="deletion", num_tokens=1, num_computed_tokens=0), message)
    (purge,) = engine.step().purges
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1 - 2
    assert engine.side.report() is None
    engine.results(purged={purge.number: 0})
    assert engine.side.report().carried_out == {"deletion": ()}


def test_a_deletion_in_the_gpu_tier_alone_reaches_the_workers(engine):
    """They keep KV of facts, which is in no tier."""
    message = RequestMessage("deletion", orders=Orders(forget=(("n", "c1"),), tiers=(Tier.GPU,)))
    engine.side.admit(SimpleNamespace(request_id="deletion", num_tokens=1, num_computed_tokens=0), message)
    (purge,) = engine.step().purges
    assert (purge.contents, purge.tiers) == ({"n": frozenset({"c1"})}, ())
    assert engine.side.report() is None
    engine.results(purged={purge.number: 0})
    assert engine.side.report().carried_out == {"deletion": ()}


def test_an_inquiry_answers_with_the_gpu_tier_and_the_others(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    engine.side.inquire("question")
    assert engine.side.busy
    assert engine.step().inquiries == ["question"]
    stored = KvNode("k0", "n", ("c0",), 0, 8)
    engine.results(held={"question": {Tier.HOST: TierContents((StoredNode(stored),), 7)}})
    nodes = (HeldNode("n", ("c0",), 8), HeldNode("n", CONTENTS, 8))
    assert engine.side.report().held == {
        "question": (ResidencyReport(Tier.GPU, nodes, "one"), ResidencyReport(Tier.HOST, nodes[:1], highest_stamp=7))
    }
    assert not engine.side.busy


def finish(engine: Engine, *failed: str) -> None:
    """End the transfers of a step; those of the nodes ``failed`` without success."""
    engine.results(transfers={transfer.number: transfer.key not in failed for transfer in engine.step().transfers})


def test_a_plan_is_carried_out_when_what_it_writes_is_written(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    request = engine.admit("second", None, Tier.HOST, prefix="h", moves=(Move("k1", 8, Tier.GPU, Tier.DISK),))
    blocks = engine.allocate(request)
    finish(engine)
    request.num_output_tokens = 1
    report = engine.side.report()
    assert report.prefilled.keys() == {"second"}
    # The nodes are saved now that the first token is there.
    assert report.carried_out == {}
    finish(engine, "h1")
    assert engine.side.report().carried_out == {"second": (LostCopy("h1", Tier.HOST),)}
    engine.end(request, blocks)
    assert engine.side.report() is None


def test_nothing_is_reported_of_a_plan_that_ends_before_its_first_token(engine):
    engine.prefill("first", Tier.GPU)
    engine.side.report()
    request = engine.admit("second", None, Tier.HOST, prefix="h", moves=(Move("k1", 8, Tier.GPU, Tier.DISK),))
    engine.end(request, engine.allocate(request))
    finish(engine)
    assert engine.side.report() is None
    assert not engine.side.busy


def test_a_plan_that_writes_nothing_is_not_reported_as_carried_out(engine):
    engine.prefill("q", Tier.GPU)
    assert engine.side.report().carried_out == {}


def test_a_plans_moves_start_when_it_is_admitted(engine):
    engine.prefill("first", Tier.GPU)
    moves = (Move("k1", 8, Tier.GPU, Tier.DISK),)
    engine.admit("second", None, None, moves=moves)
    assert [transfer.key for transfer in engine.step().transfers] == ["k1"]


def test_a_node_of_a_preempted_request_is_not_held_without_its_blocks(engine):
    """As when vLLM's prefix cache is reset: the request is preempted behind its first token, before it is reported."""
    request = engine.admit("q", None, Tier.GPU)
    engine.side.match(request, 0)
    engine.allocate(request)
    engine.step(q=18)
    engine.step(preempted=("q",))
    request.num_output_tokens = 1
    report = engine.side.report()
    assert set(report.lost) == {LostCopy("k0", Tier.GPU), LostCopy("k1", Tier.GPU)}
    assert engine.side.match(engine.admit("again", Tier.GPU, None), 0) == (0, False)


def test_a_request_is_not_kept_after_its_end(engine):
    """Only where its documents stand is: a request has the token list of its prompt."""
    request = engine.admit("q", None, Tier.GPU)
    engine.side.match(request, 0)
    blocks = engine.allocate(request)
    engine.step(q=18)
    request.num_computed_tokens, request.num_output_tokens = 18, 1
    engine.end(request, blocks)
    engine.side.report()
    kept = weakref.ref(request)
    del request
    assert kept() is None


@pytest.mark.parametrize(
    "life",
    [
        ("preempted", "deleted", "aborted"),
        ("preempted", "aborted", "deleted"),
        ("deleted", "preempted", "aborted"),
        ("reset", "aborted", "deleted"),
        ("preempted", "resumed", "deleted"),
        ("reset", "resumed", "deleted"),
        ("deleted", "reset", "resumed"),
    ],
    ids="-".join,
)
def test_a_deletion_finds_the_blocks_that_a_preempted_request_has_left(engine, monkeypatch, life):
    """The engine's prefix cache may still find them. A reset preempts between two steps: the next one tells."""
    evicted: set[int] = set()
    monkeypatch.setattr(engine.pool, "evict_blocks", evicted.update)
    request = engine.admit("q", None, None)
    engine.side.match(request, 0)
    left = engine.allocate(request)
    engine.step(q=18)
    for event in life:
        match event:
            case "preempted":
                request.num_preemptions = 1
                engine.step(preempted=("q",))
            case "resumed":
                engine.allocate(request)
            case "aborted":
                engine.side.complete(request)
            case "deleted":
                message = RequestMessage("deletion", orders=Orders(forget=(("n", "c1"),)))
                engine.side.admit(SimpleNamespace(request_id="deletion", num_tokens=1, num_computed_tokens=0), message)
    assert set(left[2:]) <= evicted
