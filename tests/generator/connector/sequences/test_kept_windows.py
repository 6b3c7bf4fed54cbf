"""What a node keeps of windows is there whenever a path ends at it."""

import pytest

pytest.importorskip("vllm")

from toy_documents import NAMESPACE, Documents
from toy_engine import ToyEngine, answer_to

from generator.connector.messages import RequestMessage
from protocol.kv import Orders, PageGroup
from protocol.tiers import Tier

BLOCKS = 100
HOST_GIB = 80 * 128 / (1 << 30)
LENGTHS = (21, 3, 30, 17)
"""Longer and shorter than the windows, and none of them ends with a block."""
KINDS = [
    pytest.param((PageGroup(8),), id="a window"),
    pytest.param((PageGroup(), PageGroup(9)), id="all tokens and a window"),
    pytest.param((PageGroup(6), PageGroup(), PageGroup(17)), id="windows of several sizes"),
    pytest.param((PageGroup(), PageGroup(12, 1, True)), id="all tokens and chunks"),
    pytest.param((PageGroup(), PageGroup(9, 4)), id="all tokens in short blocks and a window in long ones"),
    pytest.param((PageGroup(), PageGroup(1, states=True)), id="all tokens and states"),
    pytest.param((PageGroup(1, 4, states=True), PageGroup(0, 4)), id="all tokens and states, in long blocks"),
]


@pytest.fixture(params=KINDS)
def documents(request):
    return Documents("paper", LENGTHS, request.param)


@pytest.fixture(params=[False, True], ids=["", "asynchronous steps"])
def engine(request, tmp_path, documents):
    (tmp_path / "kv").mkdir()
    groups = documents.paging.groups
    engine = ToyEngine(
        tmp_path / "kv", BLOCKS, request.param, tmp_path / "model", groups, host_gib=HOST_GIB, disk_gib=1
    )
    yield engine
    engine.close()


def forget_own_cache(engine: ToyEngine) -> None:
    """So that all that is found is found by the connector."""
    engine.scheduler.kv_cache_manager.block_pool.evict_blocks(set(range(1, BLOCKS)))


@pytest.mark.parametrize("tier", [Tier.GPU, Tier.HOST, Tier.DISK])
def test_a_path_is_found_wherever_it_ends(engine, documents, tier):
    assert documents.ask(engine, "saves", None, tier, 4) == []
    for count in (4, 1, 3, 2):
        forget_own_cache(engine)
        assert documents.ask(engine, f"asks {count}", tier, None, count) == []
        assert engine.prefilled[f"asks {count}"].loaded == {tier: sum(LENGTHS[:count])}


def test_documents_in_front_of_the_window_are_loaded_into_the_gpu_with_the_others(engine, documents):
    documents.ask(engine, "saves", None, Tier.HOST, 4)
    forget_own_cache(engine)
    assert documents.ask(engine, "loads", Tier.HOST, Tier.GPU, 4) == []
    for count in (1, 2, 3, 4):
        forget_own_cache(engine)
        assert documents.ask(engine, f"asks {count}", Tier.GPU, None, count) == []
        assert engine.prefilled[f"asks {count}"].loaded == {Tier.GPU: sum(LENGTHS[:count])}


def test_documents_whose_windows_find_no_room_are_not_kept_in_the_gpu(engine, documents, monkeypatch):
    documents.ask(engine, "saves", None, Tier.HOST, 4)
    forget_own_cache(engine)
    monkeypatch.setattr(engine.connector._scheduler_side._gpu, "spare_blocks", lambda count: [])
    lost = documents.ask(engine, "loads", Tier.HOST, Tier.GPU, 4)
    assert documents.keys[0] in lost
    assert documents.ask(engine, "asks", Tier.HOST, None, 1) == []


def test_a_path_in_the_engines_own_cache_is_kept_as_far_as_its_windows_are_there(engine, documents):
    documents.ask(engine, "computes", None, None, 4)
    lost = documents.ask(engine, "saves", None, Tier.HOST, 4)
    forget_own_cache(engine)
    kept = next((index for index, key in enumerate(documents.keys) if key in lost), 4)
    if kept:
        documents.ask(engine, "asks", Tier.HOST, None, kept)


def test_a_load_that_fails_begins_again_without_what_is_missing(engine, documents, tmp_path):
    documents.ask(engine, "saves", None, Tier.DISK, 4)
    free = engine.free_blocks
    damaged = set()
    for file in sorted(tmp_path.rglob("*.safetensors")):
        forget_own_cache(engine)
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        damaged.add(file.stem)
        lost = documents.ask(engine, f"asks {file.stem}", Tier.DISK, None, 4)
        # Windows of the documents in front are not read.
        assert damaged.issuperset(lost)
        assert documents.keys[3] in lost or documents.keys[3] not in damaged
        forget_own_cache(engine)
        assert documents.ask(engine, f"saves {file.stem}", None, Tier.DISK, 4) == []
        damaged.difference_update(lost)
    assert engine.free_blocks == free


def test_what_a_speculative_prefill_has_computed_is_kept_with_its_windows(engine, documents):
    prompt = [*documents.tokens, 1, 2]
    engine.send(documents.message("guess", None, Tier.HOST, speculative=True), prompt, 1)
    for _ in range(4):
        engine.step()
    engine.abort("guess")
    engine.run_until(lambda: engine.idle)
    (reached,) = [report.prefilled["guess"].reached for report in engine.connector.reports if report.prefilled]
    engine.connector.reports.clear()
    whole = sum(sum(LENGTHS[: index + 1]) <= reached - 4 for index in range(4))
    assert whole
    forget_own_cache(engine)
    assert documents.ask(engine, "asks", Tier.HOST, None, whole) == []
    assert engine.prefilled["asks"].loaded == {Tier.HOST: sum(LENGTHS[:whole])}


def test_all_blocks_are_free_in_the_end(engine, documents):
    free = engine.free_blocks
    documents.ask(engine, "saves", None, Tier.DISK, 4)
    assert engine.free_blocks == free
    engine.send(documents.message("aborted", Tier.DISK, Tier.GPU), [*documents.tokens, 1], 1)
    engine.step()
    engine.abort("aborted")
    engine.run_until(lambda: engine.idle)
    assert engine.free_blocks == free


@pytest.mark.parametrize("documents", KINDS[:3], indirect=True)
@pytest.mark.parametrize("engine", [False], indirect=True)
def test_a_load_after_a_preemption_writes_into_no_free_block(engine, documents, monkeypatch):
    """The nodes have kept their windows, which are not loaded again: the spare blocks would be others' by then."""
    documents.ask(engine, "saves", None, Tier.HOST, 4)
    forget_own_cache(engine)
    pool = engine.scheduler.kv_cache_manager.block_pool
    step_loads = engine.worker_side.step_loads
    load, loaded = step_loads.load, []

    def checked(loads):
        written = [block for one in loads for piece in one.pieces for block in piece.blocks]
        assert all(pool.blocks[block].ref_cnt for block in written)
        loaded.extend(loads)
        load(loads)

    monkeypatch.setattr(step_loads, "load", checked)
    prompt = [*documents.tokens, *range(1, 80)]
    engine.send(documents.message("asks", Tier.HOST, Tier.GPU), prompt, 1)
    engine.step()
    (request,) = engine.scheduler.running
    engine.scheduler.running.clear()
    engine.scheduler._preempt_request(request, 0.0)
    engine.scheduler.prev_step_scheduled_req_ids.clear()
    forget_own_cache(engine)
    engine.run_until(lambda: engine.idle)
    assert [one.request_id for one in loaded] == ["asks", "asks"]
    assert engine.answers["asks"] == answer_to(prompt, 1, documents.paging.groups)


def test_nothing_of_a_document_that_is_deleted_during_its_prefill_is_found_later(engine, documents):
    """Also not in blocks that the window has passed since."""
    prompt = [*documents.tokens, 1, 2]
    engine.send(documents.message("prefills", None, Tier.HOST), prompt, 2)
    for _ in range(2):
        engine.step()
    orders = Orders(forget=((NAMESPACE, documents.contents[0]),))
    engine.send(RequestMessage("deletes", orders=orders), [1], 1)
    engine.run_until(lambda: engine.idle)
    assert engine.answers["prefills"] == answer_to(prompt, 2, documents.paging.groups)
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert [block.block_id for block in pool.blocks if block.block_hash is not None] == []
