"""A block's memory is found in every layout, in as few slabs as possible."""

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from kv_layouts import BLOCKS, DIM, HEADS, LAYERS, LAYOUTS, TOKENS, blocks_first, caches_in

from generator.connector.blocks.layout_map import slabs_of
from protocol.errors import ConfigError

SLABS = {
    "LBNHC": LAYERS,
    "LBHNC": LAYERS,
    "LHBNC": LAYERS * HEADS,
    "BLHNC": 1,
    "BLNHC": 1,
    "BHLNC": 1,
    "blocks, K and V": LAYERS,
    "K and V, blocks": 2 * LAYERS,
}


def rows_in(layout: str) -> list[torch.Tensor]:
    return [blocks_first(layout, cache) for cache in caches_in(layout, torch.float32).values()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_has_as_few_slabs_as_its_layout_allows(layout):
    assert len(slabs_of(rows_in(layout))) == SLABS[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slabs_hold_each_element_of_a_block_once_and_know_which(layout):
    rows = rows_in(layout)
    slabs = slabs_of(rows)
    assert sorted(np.concatenate([slab.elements for slab in slabs])) == list(range(LAYERS * HEADS * TOKENS * 2 * DIM))
    for block in range(BLOCKS):
        logical = np.concatenate([row[block].reshape(-1).numpy() for row in rows])
        for slab in slabs:
            assert (slab.memory[block].view(torch.float32).numpy() == logical[slab.elements]).all()


def test_layers_of_a_single_block_are_not_joined_beyond_it():
    memory = torch.zeros(2, 1, HEADS, TOKENS, DIM)
    assert [tuple(slab.memory.shape) for slab in slabs_of(list(memory))] == [(1, 256)] * 2


def test_scattered_numbers_are_refused():
    with pytest.raises(ConfigError, match="scattered"):
        slabs_of([torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM)[..., ::2]])
