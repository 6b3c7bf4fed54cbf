"""Pages are staged on a device as long as it has room, and in host memory otherwise."""

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from kv_layouts import BLOCKS, TOKENS, caches_in, writer_of
from late_copies import LateCopies

from generator.connector.blocks import pinned_path
from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.blocks.staged_pages import DeviceStagedPages, HostStagedPages
from protocol.kv import Paging


def blocks_with(free_pages: float, layout: str = "LBNHC") -> CudaBlocks:
    """Blocks on a device that stages up to this many pages."""
    size = CudaBlocks(
        EngineCache(caches_in(layout, torch.bfloat16), BLOCKS, Paging(TOKENS), writer_of), LateCopies(0)
    ).page_bytes
    copies = LateCopies(int(4 * free_pages * size))
    return CudaBlocks(EngineCache(caches_in(layout, torch.bfloat16), BLOCKS, Paging(TOKENS), writer_of), copies)


@pytest.mark.parametrize("free_pages", [9, 0])
@pytest.mark.parametrize("pinned", [True, False])
def test_rows_get_the_pages_that_are_written_to_them_and_no_other_row_changes(free_pages, pinned, monkeypatch):
    blocks = blocks_with(free_pages)
    monkeypatch.setattr(pinned_path, "_BUFFER_BYTES", 2 * blocks.page_bytes)  # so that several buffers are filled
    source = np.random.default_rng(0).integers(0, 256, (7, blocks.page_bytes), np.uint8)
    if pinned:
        blocks.pin(source)
    staged = blocks.stage(9)
    before = staged.pages.clone()
    staged.write(source, [6, 1, 3, 5, 2], [8, 0, 4, 3, 6])
    blocks.finish()
    expected = before.numpy()
    expected[[8, 0, 4, 3, 6]] = source[[6, 1, 3, 5, 2]]
    assert (staged.pages.numpy() == expected).all()


@pytest.mark.parametrize("free_pages", [4, 0])
@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC", "K and V, blocks"])
def test_a_block_that_is_taken_is_the_page_that_is_read_of_it(free_pages, layout):
    blocks = blocks_with(free_pages, layout)
    staged = blocks.stage(4)
    staged.take((5, 0, 3), 1)
    blocks.finish()
    page = np.empty(blocks.page_bytes, np.uint8)
    for row, block in ((1, 5), (2, 0), (3, 3)):
        blocks.read(block, page, TOKENS)
        assert (staged.pages[row].numpy() == page).all()


def test_a_quarter_of_what_is_free_is_used_and_given_back():
    blocks = blocks_with(5)
    first, second = blocks.stage(3), blocks.stage(2)
    assert [type(first), type(second)] == [DeviceStagedPages] * 2
    assert isinstance(blocks.stage(1), HostStagedPages)
    del first
    assert isinstance(blocks.stage(4), HostStagedPages)
    assert isinstance(blocks.stage(3), DeviceStagedPages)


def test_pages_are_staged_in_host_memory_if_the_device_has_none_left(monkeypatch):
    blocks = blocks_with(5)
    monkeypatch.setattr(LateCopies, "new_pages", lambda *_: None)
    assert isinstance(blocks.stage(5), HostStagedPages)
    monkeypatch.undo()
    assert isinstance(blocks.stage(5), DeviceStagedPages)
