"""Keys and values that are read out of pages and blocks are those that the backend wrote, in any layout."""

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from kv_layouts import BLOCKS, LAYOUTS, SPLIT, TOKENS, Writer, blocks_first, caches_in, writer_of

from generator.composing import attention_layers
from generator.composing.attention_layers import LayerCodec
from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.layout_map import KvShape
from generator.connector.blocks.paged_blocks import EngineCache
from protocol.kv import Paging

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["along axes", "by places"])
def along_axes(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(attention_layers, "axes_of", lambda _places: None)


@pytest.mark.usefixtures("along_axes")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_written_is_read(layout, dtype):
    caches = caches_in(layout, dtype)
    blocks = CpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))
    written = {}
    for number, (name, cache) in enumerate(caches.items()):
        keys = (
            torch.arange(2 * Writer.shape.keys).remainder(199).to(dtype).view(2 * TOKENS, Writer.shape.heads, -1)
            + number
        )
        values = -keys.flip(0)
        for part, block in enumerate((4, 2)):
            rows = slice(part * TOKENS, (part + 1) * TOKENS)
            scratch = blocks_first(layout, cache)[block : block + 1]
            scratch = scratch.movedim(0, 1) if layout == SPLIT[1] else scratch
            Writer().write(scratch, keys[rows], values[rows])
        written[name] = keys, values
    pages = np.empty((2, blocks.page_bytes), np.uint8)
    for row, block in enumerate((4, 2)):
        blocks.read(block, pages[row], TOKENS)
    tokens = slice(1, 2 * TOKENS - 1)
    for places in blocks.places():
        keys, values = (part[tokens] for part in written[places.name])
        in_page = LayerCodec(places.shape, places.in_page, CPU).decode(torch.from_numpy(pages).view(dtype), tokens)
        own = blocks_first(layout, caches[places.name])[[4, 2]].flatten(1)
        in_block = LayerCodec(places.shape, places.in_block, CPU).decode(own, tokens)
        for found in (in_page, in_block):
            assert torch.equal(found.keys, keys)
            assert torch.equal(found.values, values)


def test_tokens_that_a_backend_splits_are_read():
    """Sixteen of a block's tokens stand side by side, and the rest further on."""
    tokens, heads, dims = np.arange(32), np.arange(2), np.arange(8)
    places = (tokens // 16 * 1000 + tokens % 16)[:, None, None] + (heads * 200)[:, None] + dims * 16
    rows = torch.arange(4000).view(2, 2000)
    both = np.tile(places.astype(np.uint32).reshape(-1), 2)
    read = LayerCodec(KvShape(32, 2, 8, 8), both, CPU).keys(rows, slice(64))
    assert torch.equal(read[40], rows[1][torch.from_numpy(places[8])])
