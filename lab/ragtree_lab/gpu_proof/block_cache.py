"""A KV cache on the device in one layout, with an arena beside it."""

import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from generator.connector.blocks.cpu_blocks import CpuBlocks, NeutralCpuBlocks
from generator.connector.blocks.layout_map import KvShape
from generator.connector.blocks.open_blocks import open_blocks
from generator.connector.blocks.paged_blocks import EngineCache
from generator.tiers.arena import HostArena
from generator.tiers.base import Page
from protocol.kv import KvNode, Pages, Paging
from ragtree_lab.gpu_proof.groups import NEUTRAL
from ragtree_lab.gpu_proof.process import Task

_PACKED = {
    "LBNHC": (0, 1, 3, 2, 4),
    "LBHNC": (0, 1, 2, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
}
"""The order in memory of layers, blocks, heads, tokens (N), and K and V of one head (C)."""


class CacheShape(NamedTuple):
    """The dimensions of a cache."""

    layers: int
    blocks: int
    heads: int
    tokens: int
    dim: int


class _Writer:
    """Writes a block as an attention backend with this kind of layout does."""

    quantised = None

    def __init__(self, shape: KvShape, packed: bool) -> None:
        self.shape = shape
        self._packed = packed

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""
        if self._packed:
            cache[0] = torch.cat([keys, values], dim=-1).transpose(0, 1)
        else:
            cache[0, 0], cache[1, 0] = keys, values


class BlockCache:
    """A cache in bfloat16, full of random numbers, and an arena with room for two pages a block.

    ``layout`` is one of vLLM's packed ones, or "K and V, blocks" for a tensor a layer with all keys in front; with
    ``NEUTRAL`` behind it if that is not the order of pages.
    """

    def __init__(self, device: torch.device, shape: CacheShape, layout: str, task: Task) -> None:
        self._shape = shape
        self._layout = layout.removesuffix(NEUTRAL)
        neutral = layout.endswith(NEUTRAL)
        size = shape.blocks * shape.heads * shape.tokens * 2 * shape.dim
        packed = self._layout in _PACKED
        count, size = (1, shape.layers * size) if packed else (shape.layers, size)
        self._memory = [torch.randn(size, device=device).to(torch.bfloat16) for _ in range(count)]
        self._layers = self._views(self._memory)
        writer = _Writer(KvShape(shape.tokens, shape.heads, shape.dim, shape.dim), packed)
        cache = EngineCache(self._named(self._layers), shape.blocks, Paging(shape.tokens), lambda _: writer)
        self.blocks = open_blocks(cache, neutral)
        # The same layout in the CPU's memory, to look at what the device holds.
        self._mirror = [torch.empty(size, dtype=torch.bfloat16) for _ in range(count)]
        mirrored = self._named(self._views(self._mirror))
        on_cpu = NeutralCpuBlocks if neutral else CpuBlocks
        self._mirrored = on_cpu(EngineCache(mirrored, shape.blocks, Paging(shape.tokens), lambda _: writer))
        pages = 2 * shape.blocks
        folder = task.host_folder(pages * self.blocks.page_bytes)
        self._file = Path(tempfile.mkdtemp(prefix="ragtree-proof-", dir=folder)) / "arena"
        self.arena = HostArena(
            self._file, "proof", Paging(shape.tokens), self.blocks.page_bytes, pages, self.blocks.pin
        )

    def close(self) -> None:
        """Free the arena."""
        self.arena.close()
        for file in self._file.parent.iterdir():
            file.unlink()
        self._file.parent.rmdir()

    def fill(self, block: int, number: float) -> None:
        """Let the device fill a block, on its current stream."""
        dim = self._layers[0].shape.index(self._shape.blocks)
        for layer in self._layers:
            layer.select(dim, block).fill_(number)

    def pages(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """What the device holds in some blocks once its work is done. Not read through ``blocks``."""
        for mirror, memory in zip(self._mirror, self._memory, strict=True):
            mirror.copy_(memory)
        pages = np.empty((len(blocks), self.blocks.page_bytes), np.uint8)
        for page, block in zip(pages, blocks, strict=True):
            self._mirrored.read(block, page, self._shape.tokens)
        return pages

    def put(self, key: str, pages: Page, at: Pages) -> None:
        """Write pages into the arena."""
        with self.arena.writing(self._node(key, at), at) as writer:
            for index, page in enumerate(pages):
                writer.page(index)[:] = page

    def save(self, key: str, blocks: Sequence[int], at: Pages) -> None:
        """Copy blocks into the arena, as the connector does."""
        with self.arena.writing(self._node(key, at), at) as writer:
            try:
                for index, block in enumerate(blocks):
                    self.blocks.read(block, writer.page(index), self._shape.tokens)
            finally:
                self.blocks.finish()

    def load(self, key: str, blocks: Sequence[int], at: Pages) -> None:
        """Copy pages of the arena into blocks, as the connector does."""
        with self.arena.reading(key, at) as reader:
            try:
                reader.load(0, blocks, self.blocks)
            finally:
                self.blocks.finish()

    def saved(self, key: str, at: Pages) -> NDArray[np.uint8]:
        """What the arena holds."""
        with self.arena.reading(key, at) as reader:
            return np.stack([reader.page(index) for index in range(len(at.numbers))])

    def is_pinned(self, key: str, at: Pages) -> bool:
        """Whether CUDA knows the arena's memory as pinned."""
        with self.arena.reading(key, at) as reader:
            return torch.from_numpy(reader.page(0)).is_pinned()

    def _views(self, memory: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        layers, blocks, heads, tokens, dim = self._shape
        if self._layout not in _PACKED:
            return [layer.view(2, blocks, tokens, heads, dim) for layer in memory]
        shape, order = (layers, blocks, heads, tokens, 2 * dim), _PACKED[self._layout]
        assert memory[0].numel() == prod(shape)
        packed = memory[0].view([shape[axis] for axis in order])
        return list(packed.permute([order.index(axis) for axis in range(len(order))]))

    @staticmethod
    def _named(layers: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"layer {number}": layer for number, layer in enumerate(layers)}

    def _node(self, key: str, at: Pages) -> KvNode:
        return KvNode(key, "proof", (key,), 0, len(at.numbers) * self._shape.tokens)
