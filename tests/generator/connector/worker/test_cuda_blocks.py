"""Blocks on a GPU hold the right bytes at the right time, in every layout. The copies are a CPU's, made late."""

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_layouts import BLOCKS, LAYERS, LAYOUTS, TOKENS, blocks_first, caches_in, writer_of
from late_copies import LateCopies

from generator.connector.blocks import pinned_path
from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.step_jobs import BlockCopy
from protocol.kv import Paging

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ARENA_ROWS = 9

layouts = st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(DTYPES))


class Cache:
    """A cache in one layout, its blocks as a GPU's and as a CPU's, and host memory of nine pages."""

    def __init__(self, layout: str, dtype: torch.dtype, pinned: bool) -> None:
        self._layout = layout
        self._caches = caches_in(layout, dtype)
        self.copies = LateCopies()
        self.blocks = CudaBlocks(EngineCache(self._caches, BLOCKS, Paging(TOKENS), writer_of), self.copies)
        self.on_cpu = CpuBlocks(EngineCache(self._caches, BLOCKS, Paging(TOKENS), writer_of))
        # As in an arena, rows are aligned: a row does not begin where the last one ends.
        stride = -(-self.blocks.page_bytes // 4096) * 4096
        self.host = np.full((ARENA_ROWS, stride), 0xDD, np.uint8)[:, : self.blocks.page_bytes]
        if pinned:
            self.blocks.pin(self.host)

    def content(self) -> list[list[torch.Tensor]]:
        """A copy of each block, layer by layer."""
        rows = [blocks_first(self._layout, cache) for cache in self._caches.values()]
        return [[row[block].clone() for row in rows] for block in range(BLOCKS)]

    def page(self, block: int, tokens: int = TOKENS) -> np.ndarray:
        """A block's page, as the CPU reads it."""
        page = np.empty(self.on_cpu.page_bytes, np.uint8)
        self.on_cpu.read(block, page, tokens)
        return page


def same(content: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(content, other, strict=True))


@given(layouts, st.booleans(), st.data())
def test_blocks_that_are_saved_and_loaded_are_equal_and_no_other_block_is_touched(layout, pinned, data):
    cache = Cache(*layout, pinned)
    sources = data.draw(st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS))
    rows = data.draw(st.permutations(range(ARENA_ROWS)))[: len(sources)]
    targets = data.draw(st.permutations(range(BLOCKS)))[: len(sources)]
    before = cache.content()
    for source, row in zip(sources, rows, strict=True):
        cache.blocks.read(source, cache.host[row], TOKENS)
    cache.blocks.finish()
    assert all(same(one, two) for one, two in zip(cache.content(), before, strict=True))
    cache.blocks.write(cache.host, rows, targets)
    cache.blocks.finish()
    assert cache.copies.under_way == 0
    moved = dict(zip(targets, sources, strict=True))
    for block, content in enumerate(cache.content()):
        assert same(content, before[moved.get(block, block)])
    for row in set(range(ARENA_ROWS)) - set(rows):
        assert (cache.host[row] == 0xDD).all()


@given(layouts, st.booleans(), st.integers(0, BLOCKS - 1), st.integers(1, TOKENS))
def test_a_page_is_the_same_as_on_a_cpu_and_has_zeros_behind_its_last_token(layout, pinned, block, tokens):
    cache = Cache(*layout, pinned)
    cache.blocks.read(block, cache.host[4], tokens)
    cache.blocks.finish()
    assert (cache.host[4] == cache.page(block, tokens)).all()
    content = cache.content()[block]
    cache.blocks.write(cache.host, [4], [block])
    cache.blocks.finish()
    for layer, before in zip(cache.content()[block], content, strict=True):
        dim = layer.shape.index(TOKENS)
        assert torch.equal(layer.narrow(dim, 0, tokens), before.narrow(dim, 0, tokens))
        assert not layer.narrow(dim, tokens, TOKENS - tokens).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_that_is_not_pinned_may_be_reused_at_once(layout, monkeypatch):
    monkeypatch.setattr(pinned_path, "_BUFFER_BYTES", 1)  # so that several buffers are filled in turn
    cache = Cache(layout, torch.bfloat16, pinned=False)
    before = cache.content()
    buffer = np.empty((1, cache.blocks.page_bytes), np.uint8)
    for block in range(BLOCKS):
        buffer[0] = cache.page(BLOCKS - 1 - block)
        cache.blocks.write(buffer, [0], [block])
        buffer[:] = 0
        if block >= BLOCKS // 2:
            break
    cache.blocks.finish()
    content = cache.content()
    for block in range(BLOCKS // 2 + 1):
        assert same(content[block], before[BLOCKS - 1 - block])


def test_pages_beyond_the_staging_buffers_are_loaded(monkeypatch):
    cache = Cache("BLHNC", torch.bfloat16, pinned=False)
    monkeypatch.setattr(pinned_path, "_BUFFER_BYTES", 2 * cache.blocks.page_bytes)
    before = cache.content()
    for block in range(5):
        cache.host[block] = cache.page(block)
    cache.blocks.write(cache.host, range(5), [6, 5, 4, 3, 2])
    cache.blocks.finish()
    content = cache.content()
    assert all(same(content[6 - block], before[block]) for block in range(5))
    # Two pages a buffer.
    assert cache.copies.log.count("submit") == 3


@pytest.mark.parametrize(("layout", "copies"), [("BLHNC", 1), ("LBNHC", LAYERS)])
def test_a_page_is_one_copy_where_the_layers_of_a_block_are_adjacent(layout, copies):
    cache = Cache(layout, torch.bfloat16, pinned=True)
    cache.blocks.write(cache.host, [3, 1, 8, 2], [2, 5, 6, 0])
    assert cache.copies.log.count("submit") == 1
    assert cache.copies.under_way == 4 * copies
    cache.blocks.finish()


@given(layouts)
def test_blocks_are_copied_onto_other_ones(layout):
    cache = Cache(*layout, pinned=True)
    before = cache.content()
    cache.blocks.copy([BlockCopy(1, 4), BlockCopy(2, 6)])
    after = cache.content()
    for block, source in enumerate([0, 1, 2, 3, 1, 5, 2]):
        assert same(after[block], before[source])


def no_other_way(*_args, **_options):
    raise AssertionError("a tensor made on the device directly waits for it")


@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC"])
def test_indices_come_to_the_device_without_waiting_for_it(layout, monkeypatch):
    cache = Cache(layout, torch.bfloat16, pinned=True)
    before = cache.content()
    staged = cache.blocks.stage(2)
    made = []

    def indices(_copies: LateCopies, numbers: list[int]) -> torch.Tensor:
        made.append(list(numbers))
        return torch.from_numpy(np.array(numbers))

    monkeypatch.setattr(LateCopies, "indices", indices)
    monkeypatch.setattr(torch, "tensor", no_other_way)
    cache.blocks.copy([BlockCopy(1, 4), BlockCopy(2, 6)])
    staged.take([3, 5], 0)
    assert made == [[1, 2, 4, 6], [3, 5]]
    assert all(same(cache.content()[block], before[source]) for block, source in ((4, 1), (6, 2), (1, 1), (2, 2)))


class PinnedTensor:
    def to(self, device: object, **options: object) -> tuple[object, dict[str, object]]:
        return device, options


def test_indices_are_copied_to_a_gpu_from_pinned_memory_in_the_background(monkeypatch):
    made = []

    def tensor(numbers: object, **options: object) -> PinnedTensor:
        made.append((numbers, options))
        return PinnedTensor()

    copies = CudaCopies(torch.device("cuda", 0))
    monkeypatch.setattr(torch, "tensor", tensor)
    assert copies.indices([4, 2]) == (torch.device("cuda", 0), {"non_blocking": True})
    assert made == [([4, 2], {"dtype": torch.int64, "pin_memory": True})]


def test_layouts_are_equal_exactly_if_their_pages_are():
    pages, layouts = {}, {}
    for name in LAYOUTS:
        cache = Cache(name, torch.float32, pinned=True)
        content = cache.page(2)
        # The same logical content in every layout, so that pages differ by their layout alone.
        first = Cache("LBHNC", torch.float32, pinned=True)
        if name not in ("blocks, K and V", "K and V, blocks"):
            for own, other in zip(cache._caches.values(), first._caches.values(), strict=True):
                own.copy_(other)
            content = cache.page(2)
        pages[name], layouts[name] = content.tobytes(), cache.blocks.layout
    for one in LAYOUTS[:6]:
        for two in LAYOUTS[:6]:
            assert (pages[one] == pages[two]) == (layouts[one] == layouts[two])
    assert layouts["LBNHC"] == layouts["BLNHC"]
    assert layouts["LBHNC"] != layouts["BHLNC"]
