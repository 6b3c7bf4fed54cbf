"""Neutral pages are the same for all layouts, and become in the blocks of each what its own backend writes."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

pytest.importorskip("vllm")

import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_layouts import BLOCKS, LAYOUTS, TOKENS, Writer, caches_in, filled_alike, writer_of
from small_cache import small_cache

from generator.composing.attention_layers import LayerCodec
from generator.connector.blocks import cpu_blocks, neutral_order
from generator.connector.blocks.cpu_blocks import CpuBlocks, NeutralCpuBlocks
from generator.connector.blocks.neutral_order import NeutralOrder
from generator.connector.blocks.paged_blocks import EngineCache, LayerPlaces, PagedBlocks
from protocol.errors import ConfigError
from protocol.kv import Paging

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
layouts, dtypes = st.sampled_from(LAYOUTS), st.sampled_from(DTYPES)


class Cache:
    """A cache in one layout, as neutral pages and as pages of the engine's own."""

    def __init__(self, layout: str, dtype: torch.dtype, seed: int) -> None:
        caches = filled_alike(layout, dtype, seed)
        self.neutral = NeutralCpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))
        self.own = CpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))

    def own_pages(self) -> list[bytes]:
        return [page_of(self.own, block).tobytes() for block in range(BLOCKS)]


@functools.cache
def unchanged(layout: str, dtype: torch.dtype) -> Cache:
    """A cache that no test writes to."""
    return Cache(layout, dtype, 1)


def page_of(blocks: PagedBlocks, block: int, tokens: int = TOKENS) -> np.ndarray:
    page = np.empty(blocks.page_bytes, np.uint8)
    blocks.read(block, page, tokens)
    return page


@pytest.fixture(params=[True, False], ids=["along axes", "by places"])
def along_axes(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(neutral_order, "axes_of", lambda _places: None)


@pytest.mark.usefixtures("along_axes")
@given(layouts, layouts, dtypes, st.data())
def test_what_one_layout_saves_another_one_loads(one, other, dtype, data):
    saver, loader = Cache(one, dtype, 1), Cache(other, dtype, 2)
    expected = unchanged(other, dtype).own_pages()
    sources = data.draw(st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS))
    rows = data.draw(st.permutations(range(9)))[: len(sources)]
    targets = data.draw(st.permutations(range(BLOCKS)))[: len(sources)]
    # As in an arena, a row does not begin where the last one ends.
    host = np.full((9, saver.neutral.page_bytes + 64), 0xDD, np.uint8)[:, : saver.neutral.page_bytes]
    for source, row in zip(sources, rows, strict=True):
        saver.neutral.read(source, host[row], TOKENS)
    before = loader.own_pages()
    loader.neutral.write(host, rows, targets)
    moved = dict(zip(targets, sources, strict=True))
    for block, page in enumerate(loader.own_pages()):
        assert page == (expected[moved[block]] if block in moved else before[block])
    assert all((host[row] == 0xDD).all() for row in set(range(9)) - set(rows))


@given(layouts, layouts, dtypes, st.integers(0, BLOCKS - 1), st.integers(1, TOKENS))
def test_pages_and_their_layout_are_the_same_for_all_engines(one, other, dtype, block, tokens):
    first, second = unchanged(one, dtype).neutral, unchanged(other, dtype).neutral
    assert first.layout == second.layout
    assert (page_of(first, block, tokens) == page_of(second, block, tokens)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_has_all_keys_of_a_layer_then_its_values_token_by_token(layout):
    caches = caches_in(layout, torch.float32)
    keys = torch.arange(Writer.shape.keys).float().view(TOKENS, Writer.shape.heads, -1)
    for number, cache in enumerate(caches.values()):
        Writer().write(cache[:1] if len(cache) == BLOCKS else cache[:, :1], keys + 1000 * number, -keys - 1000 * number)
    page = (
        page_of(NeutralCpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of)), 0, 3)
        .view(np.float32)
        .reshape(3, 2, TOKENS, -1)
    )
    for number, (layer_keys, layer_values) in enumerate(page):
        expected = keys[:3].reshape(3, -1).numpy() + 1000 * number
        assert (layer_keys[:3] == expected).all()
        assert (layer_values[:3] == -expected).all()
    # Behind the third token there is nothing.
    assert not page[:, :, 3:].any()


def test_an_engine_whose_own_order_is_the_neutral_one_needs_no_setting():
    own = CpuBlocks(EngineCache(caches_in("blocks, K and V", torch.float32), BLOCKS, Paging(TOKENS), writer_of))
    assert own.layout == Cache("LBHNC", torch.float32, 1).neutral.layout


@pytest.mark.parametrize("layout", ["LBHNC", "BHLNC"])
def test_neutral_pages_are_not_taken_for_an_engines_own(layout):
    cache = Cache(layout, torch.float32, 1)
    assert cache.neutral.layout != cache.own.layout


def test_neutral_pages_of_another_dtype_are_others():
    assert Cache("LBHNC", torch.float16, 1).neutral.layout != Cache("LBHNC", torch.bfloat16, 1).neutral.layout


def test_neutral_pages_of_another_shape_are_others_even_if_they_are_as_long():
    # Tokens, heads and dimensions of a head.
    shapes = [(4, 2, 8), (8, 1, 8), (4, 1, 16), (2, 2, 16)]
    layers = [NeutralOrder(small_cache(BLOCKS, *shape, torch.float32).places(), 4).places[0] for shape in shapes]
    assert len({layer.in_page.size for layer in layers}) == 1
    assert len({layer.digest for layer in layers}) == len(shapes)


def test_layers_of_different_shapes_have_a_neutral_order():
    """The second layer has one more head."""
    blocks = small_cache(3, 4, 2, 8, torch.float32)
    order = NeutralOrder(blocks.places(), 4)
    own = page_of(blocks, 1)
    neutral, back = np.empty_like(own), np.zeros_like(own)
    order.to_neutral(own, neutral)
    first, second = own.view(np.float32)[:128], own.view(np.float32)[128:]
    # [K and V, heads, tokens, dims] becomes [K and V, tokens, heads, dims].
    expected = [part.reshape(2, heads, 4, 8).swapaxes(1, 2).reshape(-1) for part, heads in ((first, 2), (second, 3))]
    assert (neutral.view(np.float32) == np.concatenate(expected)).all()
    order.to_own(neutral, back)
    assert (back == own).all()


def test_pages_beyond_the_buffer_are_loaded(monkeypatch):
    saver, loader = Cache("LBHNC", torch.float32, 1), Cache("BLNHC", torch.float32, 2)
    monkeypatch.setattr(cpu_blocks, "_BUFFER_BYTES", 2 * loader.neutral.page_bytes)
    host = np.stack([page_of(saver.neutral, block) for block in range(5)])
    loader.neutral.write(host, range(5), [6, 5, 4, 3, 2])
    expected = Cache("BLNHC", torch.float32, 1).own_pages()
    assert loader.own_pages()[2:] == expected[4::-1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_donors_are_staged_and_read_in_the_neutral_order(layout):
    blocks = Cache(layout, torch.float32, 1).neutral
    staged = blocks.stage(3)
    staged.take((4, 2), 1)
    staged.write(np.stack([page_of(blocks, 5)]), [0], [0])
    reference = Cache("LBNHC", torch.float32, 1).own
    own = torch.from_numpy(np.stack([page_of(reference, block) for block in (5, 4, 2)])).view(torch.float32)
    for places, reference_places in zip(blocks.places(), reference.places(), strict=True):
        found = LayerCodec(places.shape, places.in_page, torch.device("cpu")).decode(
            staged.pages.view(torch.float32), slice(1, 3 * TOKENS)
        )
        expected = LayerCodec(places.shape, reference_places.in_page, torch.device("cpu")).decode(
            own, slice(1, 3 * TOKENS)
        )
        assert torch.equal(found.keys, expected.keys)
        assert torch.equal(found.values, expected.values)


def test_a_block_cannot_be_filled_in_place():
    assert Cache("LBNHC", torch.float32, 1).neutral.in_place(0) == []


@pytest.mark.parametrize("fault", ["twice", "missing"])
def test_what_is_no_permutation_is_refused(fault):
    places = small_cache(3, 4, 2, 8, torch.float32).places()
    elements = places[1].in_page.copy()
    elements[3] = elements[4] if fault == "twice" else elements.max() + 1
    with pytest.raises(ConfigError, match="no neutral order"):
        NeutralOrder([places[0], LayerPlaces("second", places[1].shape, elements, places[1].in_block)], 4)


def test_copies_on_another_thread_start_no_openmp_threads():
    """With more OpenMP threads than cores, GNU's OpenMP slows down the engine's own for good."""
    blocks = Cache("LBHNC", torch.float32, 1).neutral
    pages = np.zeros((BLOCKS, blocks.page_bytes), np.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with ThreadPoolExecutor(1) as other:
            before = other.submit(psutil.Process().num_threads).result()
            other.submit(blocks.write, pages, range(BLOCKS), range(BLOCKS)).result()
            other.submit(blocks.read, 0, pages[0], 3).result()
            assert psutil.Process().num_threads() == before
    finally:
        torch.set_num_threads(threads)
