"""An engine's paged KV cache, read and written as pages of bytes.

A page is one block's bytes in all layers, one layer after the other, in the attention backend's own layout. So pages
move at the speed of memory on any backend. Where a single token lies within a block is learnt from the backend itself.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from generator.connector.step_jobs import BlockCopy
from generator.tiers.base import Page
from protocol.errors import ConfigError

WriteTokens = Callable[[str, torch.Tensor, int], None]
"""Writes a block of marked tokens (see ``marks``) into a layer's cache, from slot 0 on."""


class PagedBlocks:
    """The blocks of an engine's KV cache, read and written as pages of ``page_bytes`` bytes.

    ``kv_caches`` are the layers' tensors by name, each with one dimension of ``num_blocks``. ``write_tokens`` is the
    backend's own way to write tokens into one. Raises ConfigError if the cache's layout is not supported.
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
            raise ConfigError("the layers keep their KV in different dtypes, which RAGTree cannot page")
        sizes = [row[0].numel() * row.element_size() for row in self._rows]
        ends = np.cumsum(sizes).tolist()
        self._spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.page_bytes: int = ends[-1]
        self._device = self._rows[0].device
        self._lanes = _by_lanes(self._rows)
        # On a CPU, numpy copies a slab in a fraction of the time of a torch call.
        self._flat = (
            [_in_numbers(row, torch.uint8).numpy() for row in self._rows] if self._device.type == "cpu" else None
        )
        self._token_of = np.concatenate(
            [
                _token_map(name, cache, row, page_tokens, write_tokens)
                for (name, cache), row in zip(kv_caches.items(), self._rows, strict=True)
            ]
        )

    @property
    def layout(self) -> str:
        """A description that is equal for engines whose pages have the same bytes."""
        shapes = [tuple(row.shape[1:]) for row in self._rows]
        return f"{self._dtype} {self.page_tokens} {shapes} {hash_of(self._token_of)}"

    @property
    def device_name(self) -> str:
        """The device's model name; for a CPU, its type and number of threads."""
        if self._device.type == "cuda":
            return str(torch.cuda.get_device_name(self._device))
        return f"{self._device.type}-{torch.get_num_threads()}"

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros behind its first ``tokens`` tokens."""
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
        """Copy rows of ``pages``, shape [any, page_bytes], into as many blocks, layer by layer."""
        source = torch.from_numpy(pages)
        runs = [(source[run.start : run.stop], targets) for run, targets in self._runs(rows, blocks)]
        for lanes, span in zip(self._lanes, self._spans, strict=True):
            for run, targets in runs:
                slabs = run[:, span].view(lanes.dtype).to(self._device)
                lanes.index_copy_(0, targets, slabs.view(-1, *lanes.shape[1:]))

    def _runs(self, rows: Sequence[int], blocks: Sequence[int]) -> list[tuple[range, torch.Tensor]]:
        """Ranges of consecutive rows, each with the blocks to copy them into."""
        cuts = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
        return [
            (range(rows[begin], rows[end - 1] + 1), torch.tensor(blocks[begin:end], device=self._device))
            for begin, end in pairwise([0, *cuts, len(rows)])
        ]

    def in_place(self, block: int) -> list[Page]:
        """A block's own memory, one slab a layer. Empty if it is not CPU memory."""
        return [flat[block] for flat in self._flat] if self._flat is not None else []

    def enter_thread(self) -> None:
        """Prepare a thread other than the engine's own. On CUDA, it copies on a stream of its own from then on."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def fence(self) -> "Callable[[], None]":
        """A function that waits until all work submitted to the engine so far is in its blocks.

        Another thread calls it, one that has entered.
        """
        if self._device.type != "cuda":
            return _nothing
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record()
        return lambda: torch.cuda.current_stream().wait_event(computed)

    def finish(self) -> None:
        """Wait until all copies of the calling thread are done."""
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks onto other ones. No block is both a source and a target."""
        sources = torch.tensor([copy.source for copy in copies], device=self._device)
        targets = torch.tensor([copy.target for copy in copies], device=self._device)
        for lanes in self._lanes:
            lanes.index_copy_(0, targets, lanes.index_select(0, sources))


def _nothing() -> None:
    """Return at once: on a CPU, the engine computes synchronously."""


def hash_of(array: NDArray[Any]) -> str:
    """A short digest of an array's bytes."""
    return blake3(np.ascontiguousarray(array).tobytes()).hexdigest(8)


def _shaped(part: Page, row: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(part).view(row.dtype).view(row.shape[1:])


def _by_block(name: str, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """The cache with its blocks as the first dimension."""
    dims = [dim for dim, size in enumerate(cache.shape) if size == num_blocks]
    if not dims:
        raise ConfigError(
            f"the KV cache of layer {name} has shape {tuple(cache.shape)}, without a dimension of {num_blocks} blocks"
        )
    # Backends put the blocks first, or second behind K and V.
    return cache.movedim(dims[0], 0)


def _by_lanes(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same memory as 64-bit integers of shape [blocks, lanes] if possible: torch copies those fastest."""
    width = torch.int64.itemsize
    if all(row[0].is_contiguous() and not any(count % width for count in _extent(row)) for row in rows):
        return [_in_numbers(row, torch.int64) for row in rows]
    return list(rows)


def _in_numbers(row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same memory as another dtype, shape [blocks, numbers of a block]. Raises ConfigError for scattered blocks."""
    if not row[0].is_contiguous():
        raise ConfigError(f"the blocks of a KV cache of shape {tuple(row.shape)} are not contiguous in memory")
    size, stride, offset = (count // dtype.itemsize for count in _extent(row))
    numbers = torch.empty(0, dtype=dtype, device=row.device)
    return numbers.set_(row.untyped_storage(), offset, (row.shape[0], size), (stride, 1))


def _extent(row: torch.Tensor) -> tuple[int, int, int]:
    """A block's size, the distance from one block to the next, and the offset of the first, all in bytes."""
    size = row.element_size()
    return row[0].numel() * size, row.stride(0) * size, int(row.storage_offset()) * size


def _token_map(
    name: str,
    cache: torch.Tensor,
    row: torch.Tensor,
    page_tokens: int,
    write_tokens: WriteTokens,
) -> NDArray[np.uint16]:
    """The token that each element of a block belongs to. Found by writing token t as the number t + 1."""
    dim = next(dim for dim, size in enumerate(cache.shape) if size == row.shape[0])
    shape = [*cache.shape]
    shape[dim] = 1
    scratch = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
    write_tokens(name, scratch, page_tokens)
    marks = scratch.movedim(dim, 0)[0].reshape(-1).float().cpu().numpy()
    if not np.array_equal(np.unique(marks), np.arange(1, page_tokens + 1)):
        raise ConfigError(f"RAGTree cannot find out where the attention backend of layer {name} keeps a token")
    return (marks - 1).astype(np.uint16)


def marks(tokens: int, heads: int, dim: int, like: torch.Tensor) -> torch.Tensor:
    """Keys or values that identify their tokens: shape [tokens, heads, dim], token t filled with t + 1."""
    numbers = torch.arange(1, tokens + 1, dtype=torch.float32, device=like.device).to(like.dtype)
    return numbers.view(-1, 1, 1).expand(tokens, heads, dim).contiguous()
