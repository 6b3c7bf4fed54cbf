"""An engine's paged KV cache as a row of pages: which bytes of which layers are one block.

A page is a block's bytes of all layers, one layer after the other, as the attention backend laid them out. So pages
move at the speed of memory, on any backend; only what is said of single tokens needs to know where in a block they lie,
and that is learnt from the backend itself.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from generator.tiers.base import Page
from protocol.errors import ConfigError

WriteTokens = Callable[[str, torch.Tensor, int], None]
"""Puts as many marked tokens as a block has, from slot 0 on, into a layer's cache: ``marks`` says how they look."""


class PagedBlocks:
    """The blocks of an engine's KV cache, read and written as pages of ``page_bytes`` bytes.

    ``kv_caches`` are the layers' tensors by name, each with one dimension of ``num_blocks``; ``write_tokens`` is the
    backend's own way to put tokens into one. Raises ConfigError for a cache whose layout cannot be told.
    """

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        num_blocks: int,
        page_tokens: int,
        write_tokens: WriteTokens,
    ) -> None:
        self.page_tokens = page_tokens
        self._rows = [_by_block(name, cache, num_blocks) for name, cache in kv_caches.items()]
        self._dtype = self._rows[0].dtype
        if any(row.dtype != self._dtype for row in self._rows):
            raise ConfigError("the layers keep their KV in different types, which RAGTree cannot page")
        sizes = [row[0].numel() * row.element_size() for row in self._rows]
        ends = np.cumsum(sizes).tolist()
        self._spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.page_bytes: int = ends[-1]
        self._device = self._rows[0].device
        self._lanes = _by_lanes(self._rows)
        # Plain memory: numpy copies a slab in a fraction of what a torch call costs.
        self._flat = (
            [_in_numbers(row, torch.uint8).numpy() for row in self._rows] if self._device.type == "cpu" else None
        )
        self._streams = threading.local()
        self._token_of = np.concatenate(
            [
                _token_map(name, cache, row, page_tokens, write_tokens)
                for (name, cache), row in zip(kv_caches.items(), self._rows, strict=True)
            ]
        )

    @property
    def layout(self) -> str:
        """What two engines' pages must agree in to be the same bytes."""
        shapes = [tuple(row.shape[1:]) for row in self._rows]
        return f"{self._dtype} {self.page_tokens} {shapes} {hash_of(self._token_of)}"

    @property
    def device_name(self) -> str:
        """What the engine computes on, as its maker calls it; of a CPU, how many threads of it."""
        if self._device.type == "cuda":
            return str(torch.cuda.get_device_name(self._device))
        return f"{self._device.type}-{torch.get_num_threads()}"

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``; what lies behind its first ``tokens`` tokens becomes zeros."""
        if self._flat is not None:
            for flat, span in zip(self._flat, self._spans, strict=True):
                page[span] = flat[block]
        else:
            for row, span in zip(self._rows, self._spans, strict=True):
                _shaped(page[span], row).copy_(row[block])
        if tokens < self.page_tokens:
            element = self._rows[0].element_size()
            page.view(f"u{element}")[self._token_of >= tokens] = 0

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages``, shape [any, page_bytes], into as many blocks: layer by layer, with all threads."""
        source = torch.from_numpy(pages)
        runs = [(source[run.start : run.stop], targets) for run, targets in self._runs(rows, blocks)]
        for lanes, span in zip(self._lanes, self._spans, strict=True):
            for run, targets in runs:
                slabs = run[:, span].view(lanes.dtype).to(self._device)
                lanes.index_copy_(0, targets, slabs.view(-1, *lanes.shape[1:]))

    def _runs(self, rows: Sequence[int], blocks: Sequence[int]) -> list[tuple[range, torch.Tensor]]:
        """Rows that follow each other, and the blocks that they belong into."""
        cuts = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
        return [
            (range(rows[begin], rows[end - 1] + 1), torch.tensor(blocks[begin:end], device=self._device))
            for begin, end in pairwise([0, *cuts, len(rows)])
        ]

    def in_place(self, block: int) -> list[Page]:
        """The slabs of a block, one a layer; none where it is not a CPU's memory."""
        return [flat[block] for flat in self._flat] if self._flat is not None else []

    def fence(self) -> "Callable[[], None]":
        """A wait, for another thread to call, until what the engine was told to compute so far is in its blocks.

        On CUDA that thread copies on a stream of its own from then on.
        """
        if self._device.type != "cuda":
            return _nothing
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record()

        def wait() -> None:
            torch.cuda.set_stream(self._own_stream())
            torch.cuda.current_stream().wait_event(computed)

        return wait

    def finish(self) -> None:
        """Return when all that this thread has copied is there."""
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def _own_stream(self) -> torch.cuda.Stream:
        if not hasattr(self._streams, "stream"):
            self._streams.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._streams.stream
        return stream

    def copy(self, source: int, target: int) -> None:
        """Copy one block onto another."""
        for row in self._rows:
            row[target] = row[source]


def _nothing() -> None:
    """Nothing has to be waited for where the engine computes in its own thread."""


def hash_of(array: NDArray[Any]) -> str:
    """A short digest of an array's bytes."""
    return blake3(np.ascontiguousarray(array).tobytes()).hexdigest(8)


def _shaped(part: Page, row: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(part).view(row.dtype).view(row.shape[1:])


def _by_block(name: str, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """The cache with its blocks as the first dimension."""
    dims = [dim for dim, size in enumerate(cache.shape) if size == num_blocks]
    if not dims:
        raise ConfigError(f"the KV cache of layer {name} has shape {tuple(cache.shape)}, and {num_blocks} blocks")
    # Backends put the blocks first, or second behind a pair of K and V.
    return cache.movedim(dims[0], 0)


def _by_lanes(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same memory in the widest numbers, which torch copies fastest: shapes [blocks, lanes] where that can be."""
    width = torch.int64.itemsize
    if all(row[0].is_contiguous() and not any(count % width for count in _extent(row)) for row in rows):
        return [_in_numbers(row, torch.int64) for row in rows]
    return list(rows)


def _in_numbers(row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same memory in other numbers, shape [blocks, a block's]. Raises ConfigError for blocks in several pieces."""
    if not row[0].is_contiguous():
        raise ConfigError(f"a block of a KV cache of shape {tuple(row.shape)} is not one stretch of memory")
    size, stride, offset = (count // dtype.itemsize for count in _extent(row))
    numbers = torch.empty(0, dtype=dtype, device=row.device)
    return numbers.set_(row.untyped_storage(), offset, (row.shape[0], size), (stride, 1))


def _extent(row: torch.Tensor) -> tuple[int, int, int]:
    """Bytes of a block, from one block to the next, and before the first."""
    size = row.element_size()
    return row[0].numel() * size, row.stride(0) * size, int(row.storage_offset()) * size


def _token_map(
    name: str,
    cache: torch.Tensor,
    row: torch.Tensor,
    page_tokens: int,
    write_tokens: WriteTokens,
) -> NDArray[np.uint16]:
    """Which token of a block each element of it belongs to: token t is written as the number t + 1, and looked for."""
    dim = next(dim for dim, size in enumerate(cache.shape) if size == row.shape[0])
    shape = [*cache.shape]
    shape[dim] = 1
    scratch = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
    write_tokens(name, scratch, page_tokens)
    marks = scratch.movedim(dim, 0)[0].reshape(-1).float().cpu().numpy()
    if not np.array_equal(np.unique(marks), np.arange(1, page_tokens + 1)):
        raise ConfigError(f"the attention backend of layer {name} does not show where it keeps a token")
    return (marks - 1).astype(np.uint16)


def marks(tokens: int, heads: int, dim: int, like: torch.Tensor) -> torch.Tensor:
    """Keys or values that name their tokens: shape [tokens, heads, dim], token t filled with t + 1."""
    numbers = torch.arange(1, tokens + 1, dtype=torch.float32, device=like.device).to(like.dtype)
    return numbers.view(-1, 1, 1).expand(tokens, heads, dim).contiguous()
