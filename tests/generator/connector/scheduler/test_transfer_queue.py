"""Transfers retain their blocks until they end, and messages wait for their jobs. Tested over vLLM's own block pool."""

import pytest

pytest.importorskip("vllm")

from small_pool import BLOCKS, PAGE, Chain, small_pool

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.transfer_queue import LostCopies, TransferQueue
from protocol.kv import KvNode, LostCopy, Move, Paging
from protocol.tiers import Tier

FREE = BLOCKS - 1


@pytest.fixture
def pool():
    return small_pool()


@pytest.fixture
def gpu(pool) -> GpuTier:
    tier = GpuTier(Paging(PAGE))
    tier.bind(pool)
    return tier


@pytest.fixture
def lost() -> LostCopies:
    return LostCopies()


@pytest.fixture
def queue(gpu, lost) -> TransferQueue:
    return TransferQueue(gpu, lost)


def move(key: str, source: Tier, target: Tier | None, evict: bool = True) -> Move:
    return Move(key, 8, source, target, None, evict)


def test_a_move_out_of_the_gpu_retains_its_blocks_until_it_ends(queue, gpu, pool):
    (key,) = Chain(gpu, pool, 8).keys
    number = queue.move(move(key, Tier.GPU, Tier.HOST))
    assert key not in gpu
    assert pool.get_num_free_blocks() == FREE - 2
    ((transfer,), purges) = queue.take_queued()
    assert (transfer.number, transfer.node.key, len(transfer.blocks), purges) == (number, key, 2, [])
    assert queue.take_queued() == ([], [])
    assert queue.writes_any({(key, Tier.HOST)})
    queue.transferred(number, done=True)
    assert pool.get_num_free_blocks() == FREE
    assert not queue.busy


def test_a_move_of_a_node_that_is_not_held_has_no_blocks(queue):
    queue.move(move("unknown", Tier.GPU, Tier.HOST))
    ((transfer,), _) = queue.take_queued()
    assert (transfer.node, transfer.blocks) == (None, ())


def test_dropping_a_node_from_the_gpu_is_done_at_once_and_loses_the_nodes_behind(queue, gpu, pool, lost):
    first, second = Chain(gpu, pool, 8, 8).keys
    assert queue.move(move(first, Tier.GPU, None)) is None
    assert pool.get_num_free_blocks() == FREE
    assert lost.take() == (LostCopy(second, Tier.GPU),)
    assert not queue.busy


def test_a_failed_transfer_outside_of_messages_is_lost(queue, lost):
    queue.save("plan", KvNode("k", "n", ("c",), 0, 8), (), Tier.DISK, None)
    ((transfer,), _) = queue.take_queued()
    queue.transferred(transfer.number, done=False)
    assert lost.take() == (LostCopy("k", Tier.DISK),)
    assert lost.take() == ()


def test_a_plan_is_carried_out_when_its_moves_and_its_saves_have_ended(queue, lost):
    moved = queue.move(move("a", Tier.HOST, Tier.DISK))
    queue.open_message("plan", {moved}, whole=False)
    queue.transferred(moved, done=False)
    # At once: nobody may wait for the message any more when it is carried out.
    assert lost.take() == (LostCopy("a", Tier.DISK),)
    # Until its first token, it may save more.
    assert queue.take_carried_out() == ({}, ())
    queue.save("plan", KvNode("k", "n", ("c",), 0, 8), (), Tier.DISK, None)
    queue.end_message("plan")
    assert queue.take_carried_out() == ({}, ())
    (_, saved), _ = queue.take_queued()
    queue.transferred(saved.number, done=True)
    assert queue.take_carried_out() == ({"plan": (LostCopy("a", Tier.DISK),)}, ())
    assert lost.take() == ()


def test_what_a_plan_without_a_first_token_could_not_write_is_lost(queue, lost):
    first, second = (queue.move(move(key, Tier.HOST, Tier.DISK)) for key in ("a", "b"))
    queue.take_queued()
    queue.open_message("plan", {first, second}, whole=False)
    queue.transferred(first, done=False)
    queue.forget_message("plan")
    queue.transferred(second, done=False)
    assert lost.take() == (LostCopy("a", Tier.DISK), LostCopy("b", Tier.DISK))
    assert queue.take_carried_out() == ({}, ())
    assert not queue.busy


def test_a_check_is_not_waited_for(queue):
    queue.move(move("a", Tier.DISK, Tier.DISK, evict=False))
    assert not queue.writes_any({("a", Tier.DISK)})


def test_a_message_is_carried_out_when_its_last_job_ends(queue, lost):
    numbers = {queue.move(move(key, Tier.HOST, Tier.DISK)) for key in ("a", "b")}
    queue.open_message("m", numbers)
    queue.take_queued()
    first, second = sorted(numbers)
    queue.transferred(first, done=True)
    assert queue.take_carried_out() == ({}, ())
    queue.transferred(second, done=False)
    assert queue.take_carried_out() == ({"m": (LostCopy("b", Tier.DISK),)}, ())
    assert queue.take_carried_out() == ({}, ())
    assert lost.take() == (LostCopy("b", Tier.DISK),)
    assert not queue.busy


@pytest.mark.parametrize(("left", "refused"), [(0, ()), (2, ("m",))])
def test_a_message_is_refused_if_its_purge_leaves_nodes(queue, left, refused):
    purge = queue.purge({"n": frozenset({"c"})}, [Tier.HOST, Tier.DISK])
    queue.open_message("m", {purge.number})
    assert queue.take_queued() == ([], [purge])
    queue.purged(purge.number, left)
    assert queue.take_carried_out() == ({"m": ()}, refused)
    assert not queue.busy


def test_a_write_that_never_ends_is_not_waited_for(gpu, lost, pool):
    now = 100.0
    queue = TransferQueue(gpu, lost, clock=lambda: now)
    (key,) = Chain(gpu, pool, 8).keys
    queue.move(move(key, Tier.GPU, Tier.HOST))
    now += 9.0
    assert queue.writes_any({(key, Tier.HOST)})
    now += 2.0
    assert not queue.writes_any({(key, Tier.HOST)})
    # The blocks are retained all the same: the worker may still read them.
    assert pool.get_num_free_blocks() == FREE - 2


def test_what_one_rank_could_not_write_is_deleted_on_the_others(gpu, lost, pool):
    queue = TransferQueue(gpu, lost, ranks=2)
    (key,) = Chain(gpu, pool, 8).keys
    number = queue.move(move(key, Tier.GPU, Tier.DISK))
    queue.take_queued()
    queue.transferred(number, done=False)
    ((drop,), _) = queue.take_queued()
    assert (drop.key, drop.source, drop.target) == (key, Tier.DISK, None)
    assert lost.take() == (LostCopy(key, Tier.DISK),)
