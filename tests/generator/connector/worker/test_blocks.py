"""Pages read out of an engine's blocks equal the pages written into them, in any layout."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

import torch
from small_cache import Writer, small_cache

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.layout_map import KvShape
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.refusal import UnsupportedByConnector
from generator.connector.step_jobs import BlockCopy
from protocol.kv import PageGroup, Paging

BLOCKS, TOKENS = 12, 4


def page_of(blocks: CpuBlocks, block: int) -> np.ndarray:
    page = np.empty(blocks.page_bytes, np.uint8)
    blocks.read(block, page, TOKENS)
    return page


layouts = st.sampled_from([(2, 8, torch.float32), (1, 8, torch.bfloat16), (1, 1, torch.int8), (3, 1, torch.bfloat16)])


@given(layouts, st.data())
def test_pages_are_written_into_their_blocks_and_no_others(layout, data):
    blocks = small_cache(BLOCKS, TOKENS, *layout)
    count = data.draw(st.integers(1, BLOCKS))
    rows = data.draw(st.lists(st.integers(0, 19), min_size=count, max_size=count))
    targets = data.draw(st.permutations(range(BLOCKS)))[:count]
    # As in an arena, rows are aligned: a row does not begin where the last one ends.
    stride = -(-blocks.page_bytes // 64) * 64
    pages = np.random.default_rng(0).integers(0, 256, (20, stride), np.uint8)[:, : blocks.page_bytes]
    expected = {block: page_of(blocks, block) for block in range(BLOCKS)}
    blocks.write(pages, rows, targets)
    expected |= {block: pages[row] for row, block in zip(rows, targets, strict=True)}
    for block in range(BLOCKS):
        assert (page_of(blocks, block) == expected[block]).all()


@given(layouts)
def test_a_blocks_own_memory_is_its_page_in_slabs(layout):
    blocks = small_cache(BLOCKS, TOKENS, *layout)
    for part in blocks.in_place(3):
        part[:] = np.arange(part.size) % 251
    expected = np.concatenate([np.arange(part.size) % 251 for part in blocks.in_place(3)])
    assert (page_of(blocks, 3) == expected).all()


@pytest.mark.parametrize("threads", [0, 1])
def test_blocks_are_copied_onto_others_by_any_thread(threads):
    blocks = small_cache(BLOCKS, TOKENS, 2, 8, torch.float32)
    expected = {block: page_of(blocks, block) for block in range(BLOCKS)}
    copies = [BlockCopy(1, 7), BlockCopy(3, 0), BlockCopy(1, 2)]
    if threads:
        with ThreadPoolExecutor(threads) as other:
            other.submit(blocks.copy, copies).result()
    else:
        blocks.copy(copies)
    expected |= {copy.target: expected[copy.source] for copy in copies}
    for block in range(BLOCKS):
        assert (page_of(blocks, block) == expected[block]).all()


def test_memory_behind_the_last_token_is_read_as_zeros():
    blocks = small_cache(BLOCKS, TOKENS, 2, 8, torch.float32)
    whole, part = page_of(blocks, 5), np.empty(blocks.page_bytes, np.uint8)
    blocks.read(5, part, 3)
    first, second = part.view(np.float32)[:128].reshape(2, 2, TOKENS, 8), part.view(np.float32)[128:]
    assert (first[:, :, 3] == 0).all()
    assert (first[:, :, :3] == whole.view(np.float32)[:128].reshape(2, 2, TOKENS, 8)[:, :, :3]).all()
    assert (second.reshape(2, 3, TOKENS, 8)[:, :, 3] == 0).all()


def test_blocks_that_are_not_a_multiple_of_64_bits_are_written():
    blocks = small_cache(BLOCKS, 3, 1, 1, torch.int8)
    assert blocks.page_bytes % 8
    pages = np.random.default_rng(0).integers(0, 256, (4, blocks.page_bytes), np.uint8)
    blocks.write(pages, [2, 3, 0], [5, 1, 7])
    for row, block in ((2, 5), (3, 1), (0, 7)):
        page = np.empty(blocks.page_bytes, np.uint8)
        blocks.read(block, page, 3)
        assert (page == pages[row]).all()


def test_copies_on_another_thread_start_no_openmp_threads():
    """With more OpenMP threads than cores, GNU's OpenMP slows down the engine's own for good."""
    blocks = small_cache(BLOCKS, 64, 8, 64, torch.float32)
    pages = np.zeros((BLOCKS, blocks.page_bytes), np.uint8)
    targets = range(BLOCKS)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with ThreadPoolExecutor(1) as other:
            before = other.submit(psutil.Process().num_threads).result()
            other.submit(blocks.write, pages, targets, targets).result()
            other.submit(blocks.read, 0, pages[0], 3).result()
            other.submit(blocks.copy, [BlockCopy(block, block + 6) for block in range(6)]).result()
            assert psutil.Process().num_threads() == before
    finally:
        torch.set_num_threads(threads)


def cache_with_states(left_over: int = 2) -> tuple[CpuBlocks, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """A layer of attention, and one with states of two dtypes, whose blocks are the same memory.

    ``left_over`` numbers of two bytes of a block belong to no state.
    """
    memory = torch.randint(-100, 100, (BLOCKS, 2, 1, TOKENS, 8)).to(torch.bfloat16)
    numbers = memory.view(BLOCKS, -1)
    states = {"state": (numbers[:, :24].view(BLOCKS, 3, 8), numbers[:, 24 : 64 - left_over].view(torch.float32))}
    paging = Paging(TOKENS, (PageGroup(), PageGroup(1, states=True)))
    writer = Writer(KvShape(TOKENS, 1, 8, 8))
    groups = [["attention"], ["state"]]
    return CpuBlocks(EngineCache({"attention": memory}, BLOCKS, paging, lambda _: writer, groups, states)), states


def test_a_state_is_a_whole_page_wherever_its_last_token_stands():
    blocks, states = cache_with_states()
    page = np.empty(blocks.page_bytes, np.uint8)
    blocks.read(5, page, 1, group=1)
    left = page.view(np.uint16).copy()
    assert (left[:24] == states["state"][0][5].reshape(-1).view(torch.uint16).numpy()).all()
    assert (left[24:62].view(np.float32) == states["state"][1][5].numpy()).all()
    # What other blocks have left there is not the state's.
    assert (left[62:] == 0).all()
    blocks.read(5, page, 1, group=0)
    assert not (page.view(np.uint16)[:24] == left[:24]).all(), "a page of attention ends behind its last token"


def test_states_of_other_dtypes_are_another_layout():
    (blocks, states), (others, _) = cache_with_states(2), cache_with_states(4)
    assert "bfloat16 (3, 8)" in blocks.layout
    assert f"float32 {tuple(states['state'][1].shape[1:])}" in blocks.layout
    assert blocks.layout != others.layout


def test_states_that_are_scattered_in_memory_are_refused():
    blocks, _ = cache_with_states()
    memory = torch.zeros(BLOCKS, 2, 1, TOKENS, 8).to(torch.bfloat16)
    scattered = {"state": (memory.view(BLOCKS, -1)[:, ::2],)}
    writer = Writer(KvShape(TOKENS, 1, 8, 8))
    cache = EngineCache(
        {"attention": memory}, BLOCKS, blocks.paging, lambda _: writer, [["attention"], ["state"]], scattered
    )
    with pytest.raises(UnsupportedByConnector, match="the states of layer state lie in memory in a way"):
        CpuBlocks(cache)
