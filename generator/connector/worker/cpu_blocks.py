"""The blocks of an engine that runs on a CPU."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch

from generator.connector.worker.blocks import PagedBlocks, WriterOf
from generator.tiers.base import Page


class CpuBlocks(PagedBlocks):
    """Blocks in the CPU's own memory. Each call returns when its copies are made, and so does the engine."""

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        num_blocks: int,
        page_tokens: int,
        writer_of: WriterOf,
    ) -> None:
        super().__init__(kv_caches, num_blocks, page_tokens, writer_of)
        # numpy copies a slab in a fraction of the time of a torch call.
        self._flat = [slab.numpy() for slab in self._slabs]

    @property
    def device_name(self) -> str:
        """The device's type and number of threads."""
        return f"cpu-{torch.get_num_threads()}"

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros behind its first ``tokens`` tokens."""
        for flat, span in zip(self._flat, self._spans, strict=True):
            page[span] = flat[block]
        self._clear_behind(tokens, page)

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages`` into as many blocks, slab by slab."""
        source = torch.from_numpy(pages)
        runs = [(source[run.start : run.stop], targets) for run, targets in _runs(rows, blocks)]
        for lanes, span in zip(self._lanes, self._spans, strict=True):
            for run, targets in runs:
                lanes.index_copy_(0, targets, run[:, span].view(lanes.dtype))

    def in_place(self, block: int) -> list[Page]:
        """A block's own memory, one part a slab."""
        return [flat[block] for flat in self._flat]

    def pin(self, memory: Page) -> Callable[[], None]:  # noqa: ARG002 - a CPU copies any memory directly
        """Do nothing."""
        return _nothing

    def enter_thread(self) -> None:
        """Do nothing."""

    def fence(self) -> Callable[[], None]:
        """A function that returns at once."""
        return _nothing

    def finish(self) -> None:
        """Do nothing."""


def _nothing() -> None:
    """Do nothing: there is nothing to wait for, or to undo."""


def _runs(rows: Sequence[int], blocks: Sequence[int]) -> list[tuple[range, torch.Tensor]]:
    """Ranges of consecutive rows, each with the blocks to copy them into."""
    cuts = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
    return [
        (range(rows[begin], rows[end - 1] + 1), torch.tensor(blocks[begin:end]))
        for begin, end in pairwise([0, *cuts, len(rows)])
    ]
