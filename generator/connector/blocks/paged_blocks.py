"""An engine's paged KV cache, read and written as pages of bytes.

A page is one block's bytes in all layers, by default in the attention backend's own layout. So pages move at the speed
of memory on any backend. Where a single token lies within a block is learnt from the backend itself.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from generator.connector.blocks.layout_map import BlockWriter, KvShape, LayoutMap, learn_indexes, slabs_of
from generator.connector.blocks.staged_pages import StagedPages
from generator.connector.refusal import UnsupportedByConnector
from generator.tiers.base import Page, PageTarget

if TYPE_CHECKING:
    from generator.connector.step_jobs import BlockCopy

WriterOf = Callable[[str], BlockWriter]
"""The attention backend's way to write a block's tokens into a layer's cache, by the layer's name."""


class EngineCache(NamedTuple):
    """An engine's KV cache: its layers' tensors by name, each with one dimension of ``num_blocks``.

    A block has ``page_tokens`` tokens. ``writer_of`` writes a block's tokens into a layer's cache.
    """

    layers: Mapping[str, torch.Tensor]
    num_blocks: int
    page_tokens: int
    writer_of: WriterOf


class LayerPlaces(NamedTuple):
    """Where the keys and values of the layer ``name`` lie, which have ``shape`` in each block.

    ``in_page`` are the elements of a page that hold its numbers: all keys, then all values, both in C order.
    ``in_block`` are those of a block of the layer's own cache, in the order of its dimensions.
    """

    name: str
    shape: KvShape
    in_page: NDArray[np.uint32]
    in_block: NDArray[np.uint32]

    @property
    def digest(self) -> str:
        """Equal for layers of one name whose pages have each number of the keys and values in the same place."""
        return blake3(f"{self.name} {tuple(self.shape)}:".encode() + self.in_page.astype("<u4").tobytes()).hexdigest(16)


class PagedBlocks(PageTarget, ABC):
    """The blocks of an engine's KV cache, read and written as pages of ``page_bytes`` bytes.

    A page is the block's memory in all ``_slabs``, one after the other. Copies of one thread are made in order, and may
    still be under way when a call returns: ``finish`` waits for them. A thread other than the engine's own calls
    ``enter_thread`` first.
    """

    def __init__(self, cache: EngineCache) -> None:
        """Raises UnsupportedByConnector if the layout of the cache is not supported."""
        self.page_tokens = cache.page_tokens
        rows = [_by_block(name, layer, cache.num_blocks) for name, layer in cache.layers.items()]
        self.dtype = rows[0].dtype
        if any(row.dtype != self.dtype for row in rows):
            raise UnsupportedByConnector("the layers keep their KV in different dtypes, which RAGTree cannot page")
        self._shapes = Counter(tuple(row.shape[1:]) for row in rows)
        slabs = slabs_of(rows)
        self._slabs = [slab.memory for slab in slabs]
        ends = np.cumsum([slab.shape[1] for slab in self._slabs]).tolist()
        self._spans = [slice(end - slab.shape[1], end) for end, slab in zip(ends, self._slabs, strict=True)]
        self.page_bytes: int = ends[-1]
        self._lanes = _lanes_of(self._slabs)
        self._elements = np.concatenate([slab.elements for slab in slabs])
        layers = [
            _layer_map(name, layer, row, cache.writer_of(name))
            for (name, layer), row in zip(cache.layers.items(), rows, strict=True)
        ]
        self._token_of = np.concatenate([layer.token_of for layer in layers])[self._elements]
        self._names = tuple(cache.layers)
        self._layer_maps = layers

    @property
    def layout(self) -> str:
        """A description that is equal for engines whose pages have the same bytes."""
        return f"{self.dtype} {self.page_tokens} {[layer.digest for layer in self.places()]}"

    def places(self) -> list[LayerPlaces]:
        """Where a page has each layer's keys and values."""
        place_of = np.empty_like(self._elements)
        place_of[self._elements] = np.arange(len(self._elements), dtype=place_of.dtype)
        ends = np.cumsum([layer.element_of.size for layer in self._layer_maps])
        return [
            LayerPlaces(name, layer.shape, place_of[end - layer.element_of.size + layer.element_of], layer.element_of)
            for name, layer, end in zip(self._names, self._layer_maps, ends, strict=True)
        ]

    @property
    def shapes(self) -> str:
        """The dtype, and how many layers have blocks of which shape, for people."""
        blocks = ", ".join(f"{count} x {shape}" for shape, count in self._shapes.items())
        return f"{str(self.dtype).removeprefix('torch.')} {blocks}"

    @property
    def copies_per_page(self) -> int:
        """The number of copies that a page takes: one if the layers of a block are adjacent."""
        return len(self._slabs)

    @property
    @abstractmethod
    def device_name(self) -> str:
        """The device's model name; for a CPU, its type and number of threads."""

    @abstractmethod
    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros after its first ``tokens`` tokens.

        Pinned memory is filled once ``finish`` has returned; any other memory is filled when the call returns.
        """

    @abstractmethod
    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages``, shape [any, page_bytes], into as many blocks.

        Pinned memory must stay as it is until ``finish`` has returned; any other memory is free when the call returns.
        """

    @abstractmethod
    def stage(self, count: int) -> StagedPages:
        """Memory for ``count`` pages that are not in blocks yet. The engine's thread calls this."""

    @abstractmethod
    def pin(self, memory: Page) -> Callable[[], None]:
        """Pin host memory, so that it is copied without a detour. Returns the function that unpins it.

        Memory that cannot be pinned stays as it is, with a warning.
        """

    @abstractmethod
    def enter_thread(self) -> None:
        """Prepare a thread other than the engine's own."""

    @abstractmethod
    def fence(self) -> Callable[[], None]:
        """A function that holds back the calling thread's later copies until the engine's work so far is done.

        The engine's thread calls ``fence``, and the function runs on any thread.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until all copies of the calling thread are done."""

    def copy(self, copies: "Sequence[BlockCopy]") -> None:
        """Copy blocks onto other ones. No block is both a source and a target."""
        numbers = self._indices([*(copy.source for copy in copies), *(copy.target for copy in copies)])
        sources, targets = numbers.view(2, -1)
        for lanes in self._lanes:
            lanes.index_copy_(0, targets, lanes.index_select(0, sources))

    @abstractmethod
    def _indices(self, numbers: Sequence[int]) -> torch.Tensor:
        """Numbers as a tensor where the blocks are. The engine's thread makes some in a step, so this must not wait."""

    def _clear_behind(self, tokens: int, page: Page) -> None:
        """Fill ``page`` with zeros after its first ``tokens`` tokens."""
        if tokens < self.page_tokens:
            page.view(f"u{self.dtype.itemsize}")[self._token_of >= tokens] = 0


def _by_block(name: str, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """The cache with its blocks as the first dimension."""
    dims = [dim for dim, size in enumerate(cache.shape) if size == num_blocks]
    if not dims:
        raise UnsupportedByConnector(
            f"the KV cache of layer {name} has shape {tuple(cache.shape)}, without a dimension of {num_blocks} blocks"
        )
    # Backends put the blocks first, or second after K and V.
    return cache.movedim(dims[0], 0)


def _lanes_of(slabs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same memory as 64-bit integers of shape [blocks, lanes] if possible: torch copies those fastest."""
    width = torch.int64.itemsize
    if any(count % width for slab in slabs for count in (slab.shape[1], slab.stride(0), slab.storage_offset())):
        return list(slabs)
    return [slab.view(torch.int64) for slab in slabs]


def _layer_map(name: str, cache: torch.Tensor, row: torch.Tensor, writer: BlockWriter) -> LayoutMap:
    """What each element of a layer's block is, in the order of the layer's own dimensions."""
    dim = next(dim for dim, size in enumerate(cache.shape) if size == row.shape[0])
    shape = [*cache.shape]
    shape[dim] = 1
    scratch = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
    return LayoutMap(writer.shape, learn_indexes(name, scratch, scratch.movedim(dim, 0)[0], writer))
