"""An engine's paged KV cache, read and written as pages of bytes.

A page is one block's bytes, by default in the attention backend's own layout. So pages move at the speed of memory on
any backend. Where a single token lies within a block is learnt from the backend itself.

Groups of layers share the memory of blocks. Each block belongs to one group at a time, and has KV of all its layers.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from generator.connector.blocks.layout_map import BlockWriter, KvShape, LayoutMap, Slab, learn_indexes, slabs_of
from generator.connector.blocks.staged_pages import StagedPages
from generator.connector.refusal import UnsupportedByConnector
from generator.tiers.base import Page, PageTarget
from protocol.kv import Paging

if TYPE_CHECKING:
    from generator.connector.step_jobs import BlockCopy

_NO_TOKEN = np.iinfo(np.uint16).max

WriterOf = Callable[[str], BlockWriter]
"""The attention backend's way to write a block's tokens into a layer's cache, by the layer's name."""


class EngineCache(NamedTuple):
    """An engine's KV cache: its layers' tensors by name, each with one dimension of ``num_blocks``.

    Blocks are cut as ``paging`` says. ``groups`` names the layers of each of its groups; by default, there is one.
    ``writer_of`` writes a block's tokens into a layer's cache. ``states`` has the tensors of the layers that keep
    states: a block has one state in all of them.
    """

    layers: Mapping[str, torch.Tensor]
    num_blocks: int
    paging: Paging
    writer_of: WriterOf
    groups: Sequence[Sequence[str]] = ()
    states: Mapping[str, Sequence[torch.Tensor]] = MappingProxyType({})


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


class _Group(NamedTuple):
    """What the pages of one group have: the ``places`` of its layers, and the token of each element.

    An element that no layer has counts as a token after all others. ``is_whole`` says that there is none. A state
    counts as the first token.
    """

    tokens: int
    places: list[LayerPlaces]
    token_of: NDArray[np.uint16]
    is_whole: bool


class PagedBlocks(PageTarget, ABC):
    """The blocks of an engine's KV cache, read and written as pages of ``page_bytes`` bytes.

    A page is the block's memory in all ``_slabs``, one after the other. Copies of one thread are made in order, and may
    still be under way when a call returns: ``finish`` waits for them. A thread other than the engine's own calls
    ``enter_thread`` first.
    """

    def __init__(self, cache: EngineCache) -> None:
        """Raises UnsupportedByConnector if the layout of the cache is not supported."""
        self.paging = cache.paging
        layers = {name: _by_block(name, layer, cache.num_blocks) for name, layer in cache.layers.items()}
        self.dtype = next(iter(layers.values())).dtype
        if any(row.dtype != self.dtype for row in layers.values()):
            raise UnsupportedByConnector("the layers keep their KV in different dtypes, which RAGTree cannot page")
        states = [(name, state) for name, parts in cache.states.items() for state in parts]
        self._states = [f"{name} {state.dtype} {tuple(state.shape[1:])}" for name, state in states]
        self._shapes = Counter(tuple(part.shape[1:]) for part in (*layers.values(), *(state for _, state in states)))
        rows = {name: [row] for name, row in layers.items()}
        rows |= {name: [_numbers(name, part, self.dtype) for part in parts] for name, parts in cache.states.items()}
        groups = cache.groups or [list(rows)]
        # Groups share the same memory. The largest one has all of it.
        whole = max((_rows_of(names, rows) for names in groups), key=lambda parts: sum(row[0].numel() for row in parts))
        slabs = slabs_of(whole)
        self._slabs = [slab.memory for slab in slabs]
        ends = np.cumsum([slab.shape[1] for slab in self._slabs]).tolist()
        self._spans = [slice(end - slab.shape[1], end) for end, slab in zip(ends, self._slabs, strict=True)]
        self.page_bytes: int = ends[-1]
        self._lanes = _lanes_of(self._slabs)
        self._groups = [self._group(cache, names, rows, number) for number, names in enumerate(groups)]

    @property
    def page_tokens(self) -> int:
        """How many tokens a page has, if there is one group."""
        return self.paging.page_tokens

    @property
    def layout(self) -> str:
        """A description that is equal for engines whose pages have the same bytes."""
        layers = [layer.digest for layer in self.places()]
        groups = "" if self.paging.keeps_all else f" {[tuple(group) for group in self.paging.groups]}"
        return f"{self.dtype} {self.page_tokens} {layers}{groups}{self._states or ''}"

    def places(self) -> list[LayerPlaces]:
        """Where a page has each layer's keys and values."""
        return [layer for group in self._groups for layer in group.places]

    def _group(
        self, cache: EngineCache, names: Sequence[str], rows: Mapping[str, Sequence[torch.Tensor]], number: int
    ) -> _Group:
        """Learn what a group's pages have."""
        tokens = cache.paging.group_tokens(number)
        parts = slabs_of(_rows_of(names, rows))
        elements = np.concatenate([part.elements for part in parts])
        place_of = np.empty_like(elements)
        place_of[elements] = np.concatenate([self._in_page(part) for part in parts])
        token_of = np.full(self.page_bytes // self.dtype.itemsize, _NO_TOKEN, np.uint16)
        if cache.paging.groups[number].states:
            token_of[place_of] = 0
            return _Group(tokens, [], token_of, elements.size == token_of.size)
        maps = [_layer_map(name, cache.layers[name], rows[name][0], cache.writer_of(name)) for name in names]
        ends = np.cumsum([layer.element_of.size for layer in maps])
        places = [
            LayerPlaces(name, layer.shape, place_of[end - layer.element_of.size + layer.element_of], layer.element_of)
            for name, layer, end in zip(names, maps, ends, strict=True)
        ]
        token_of[place_of] = np.concatenate([layer.token_of for layer in maps])
        return _Group(tokens, places, token_of, elements.size == token_of.size)

    def _in_page(self, part: Slab) -> NDArray[np.uint32]:
        """The elements of a page that a part of every block is."""
        memory, size = part.memory, self.dtype.itemsize
        for slab, span in zip(self._slabs, self._spans, strict=True):
            offset = int(memory.storage_offset()) - int(slab.storage_offset())
            if (
                memory.untyped_storage().data_ptr() == slab.untyped_storage().data_ptr()
                and memory.stride(0) == slab.stride(0)
                and 0 <= offset <= slab.shape[1] - memory.shape[1]
            ):
                first = (span.start + offset) // size
                return np.arange(first, first + memory.shape[1] // size, dtype=np.uint32)
        raise UnsupportedByConnector("groups of layers share memory in a way that RAGTree cannot page")

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
    def read(self, block: int, page: Page, tokens: int, group: int = 0) -> None:
        """Copy a block of a group into ``page``, with zeros after its first ``tokens`` tokens.

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
    def join(self) -> Callable[[], bool]:
        """Hold back the engine's later work until the copies of its thread, which calls this, are done.

        Returns a function that says whether they are, without waiting.
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

    def _clears(self, tokens: int, group: int) -> bool:
        """Whether a page of a group with that many tokens needs zeros."""
        return tokens < self._groups[group].tokens or not self._groups[group].is_whole

    def _clear_behind(self, tokens: int, page: Page, group: int) -> None:
        """Fill ``page`` with zeros after its first ``tokens`` tokens, and where the group has none."""
        if self._clears(tokens, group):
            page.view(f"u{self.dtype.itemsize}")[self._groups[group].token_of >= tokens] = 0


def _rows_of(names: Iterable[str], rows: Mapping[str, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The parts of some layers, one after the other."""
    return [row for name in names for row in rows[name]]


def _numbers(name: str, state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a state as numbers of ``dtype``, whatever they mean: shape [blocks, numbers]."""
    size, own = dtype.itemsize, state.element_size()
    sizes = [count * own for count in (state[0].numel(), state.stride(0), int(state.storage_offset()))]
    if not _is_dense(state[0]) or any(count % size for count in sizes):
        raise UnsupportedByConnector(f"the states of layer {name} lie in memory in a way that RAGTree cannot page")
    count, stride, offset = (count // size for count in sizes)
    numbers = torch.empty(0, dtype=dtype, device=state.device)
    return numbers.set_(state.untyped_storage(), offset, (state.shape[0], count), (stride, 1))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor lie next to each other, in any order of its dimensions."""
    dims = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride()[dim])
    return tensor.permute(dims).is_contiguous()


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
