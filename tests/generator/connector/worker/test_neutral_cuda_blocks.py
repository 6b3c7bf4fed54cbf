"""Neutral pages of blocks on a GPU are those of a CPU. The copies are a CPU's, made late."""

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_layouts import BLOCKS, LAYOUTS, TOKENS, filled_alike, writer_of
from late_copies import LateCopies

from generator.connector.blocks import cuda_blocks
from generator.connector.blocks.cpu_blocks import CpuBlocks, NeutralCpuBlocks
from generator.connector.blocks.cuda_blocks import NeutralCudaBlocks
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.blocks.staged_pages import DeviceStagedPages, HostStagedPages
from protocol.kv import Paging

ROWS = 9
layouts, dtypes = st.sampled_from(LAYOUTS), st.sampled_from([torch.bfloat16, torch.float32])


class Cache:
    """A cache in one layout, its blocks as a GPU's and as a CPU's, and host memory of nine pages."""

    def __init__(self, layout: str, dtype: torch.dtype, seed: int, pinned: bool = True, free: int = 1 << 20) -> None:
        caches = filled_alike(layout, dtype, seed)
        self.copies = LateCopies(free)
        self.blocks = NeutralCudaBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of), self.copies)
        self.on_cpu = NeutralCpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))
        self._own = CpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))
        # As in an arena, a row does not begin where the last one ends.
        self.host = np.full((ROWS, self.blocks.page_bytes + 64), 0xDD, np.uint8)[:, : self.blocks.page_bytes]
        if pinned:
            self.blocks.pin(self.host)

    def page(self, block: int, tokens: int = TOKENS) -> np.ndarray:
        """A block's neutral page, as the CPU reads it."""
        page = np.empty(self.on_cpu.page_bytes, np.uint8)
        self.on_cpu.read(block, page, tokens)
        return page

    def own_pages(self) -> list[bytes]:
        return [b"".join(part.tobytes() for part in self._own.in_place(block)) for block in range(BLOCKS)]


@given(layouts, layouts, dtypes, st.booleans(), st.data())
def test_what_a_cpu_saves_a_gpu_loads_and_the_other_way_round(one, other, dtype, pinned, data):
    cpu, gpu = Cache(one, dtype, 1), Cache(other, dtype, 2, pinned)
    expected = Cache(other, dtype, 1).own_pages()
    sources = data.draw(st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS))
    rows = data.draw(st.permutations(range(ROWS)))[: len(sources)]
    targets = data.draw(st.permutations(range(BLOCKS)))[: len(sources)]
    for source, row in zip(sources, rows, strict=True):
        gpu.host[row] = cpu.page(source)
    before = gpu.own_pages()
    gpu.blocks.write(gpu.host, rows, targets)
    gpu.blocks.finish()
    moved = dict(zip(targets, sources, strict=True))
    for block, page in enumerate(gpu.own_pages()):
        assert page == (expected[moved[block]] if block in moved else before[block])
    gpu.host[:] = 0xDD
    for target, row in zip(targets, rows, strict=True):
        gpu.blocks.read(target, gpu.host[row], TOKENS)
    gpu.blocks.finish()
    for source, row in zip(sources, rows, strict=True):
        assert (gpu.host[row] == cpu.page(source)).all()
    assert all((gpu.host[row] == 0xDD).all() for row in set(range(ROWS)) - set(rows))


@given(layouts, dtypes, st.booleans(), st.integers(1, TOKENS))
def test_a_page_has_zeros_behind_its_last_token(layout, dtype, pinned, tokens):
    cache = Cache(layout, dtype, 1, pinned)
    cache.blocks.read(3, cache.host[4], tokens)
    cache.blocks.finish()
    assert (cache.host[4] == cache.page(3, tokens)).all()


@pytest.mark.parametrize("pinned", [True, False])
def test_pages_beyond_the_buffer_are_loaded(pinned, monkeypatch):
    cache, saver = Cache("BLHNC", torch.bfloat16, 2, pinned), Cache("LBNHC", torch.bfloat16, 1)
    monkeypatch.setattr(cuda_blocks, "_BUFFER_BYTES", 2 * cache.blocks.page_bytes)
    for block in range(5):
        cache.host[block] = saver.page(block)
    cache.blocks.write(cache.host, range(5), [6, 5, 4, 3, 2])
    cache.blocks.finish()
    assert [cache.page(6 - block).tobytes() for block in range(5)] == [saver.page(n).tobytes() for n in range(5)]


@pytest.mark.parametrize(("free", "kind"), [(1 << 20, DeviceStagedPages), (0, HostStagedPages)])
@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC", "K and V, blocks"])
def test_a_block_that_is_taken_is_its_neutral_page(layout, free, kind):
    cache = Cache(layout, torch.bfloat16, 1, free=free)
    staged = cache.blocks.stage(4)
    assert isinstance(staged, kind)
    staged.take((5, 0, 3), 1)
    cache.blocks.finish()
    for row, block in ((1, 5), (2, 0), (3, 3)):
        assert (staged.pages[row].numpy() == cache.page(block)).all()


def test_a_gpu_and_a_cpu_name_neutral_pages_alike():
    gpu, cpu = Cache("BLHNC", torch.bfloat16, 1).blocks, Cache("LBNHC", torch.bfloat16, 1).on_cpu
    assert gpu.layout == cpu.layout
    assert [place.in_page.tolist() for place in gpu.places()] == [place.in_page.tolist() for place in cpu.places()]
