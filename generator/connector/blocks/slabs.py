"""Where a block's bytes lie in an engine's KV caches."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import ConfigError


class Slab(NamedTuple):
    """Dense memory of every block: ``memory`` has shape [blocks, bytes] and dtype uint8.

    ``elements`` are the numbers of its elements, as ``slabs_of`` counts them, in the order of memory.
    """

    memory: torch.Tensor
    elements: NDArray[np.uint32]


def slabs_of(caches: Sequence[torch.Tensor]) -> list[Slab]:
    """The memory of each block of ``caches``, whose first dimension is the blocks, in as few slabs as possible.

    A layer has one slab if its blocks are dense, and several if, for example, all keys lie in front of all values. A
    layout that keeps a block's layers next to each other has one slab for all of them. The elements of a block are
    counted layer by layer, in the order of each layer's own dimensions. Raises ConfigError if numbers are scattered.
    """
    first = 0
    parts: list[Slab] = []
    for cache in caches:
        numbers = np.arange(first, first + cache[0].numel(), dtype=np.uint32).reshape(cache.shape[1:])
        parts += _dense_parts(cache, numbers)
        first += numbers.size
    # Storages in the order of their first layer, because their addresses differ from process to process.
    places = {address: place for place, address in enumerate(dict.fromkeys(map(_storage, parts)))}
    parts.sort(key=lambda part: (places[_storage(part)], part.memory.storage_offset()))
    cuts = [at for at, (left, right) in enumerate(pairwise(parts), start=1) if not _adjacent(left, right)]
    return [_joined(parts[begin:end]) for begin, end in pairwise([0, *cuts, len(parts)])]


def _dense_parts(cache: torch.Tensor, numbers: NDArray[np.uint32]) -> Iterator[Slab]:
    """One slab for each part of a block that is dense in memory."""
    dims = sorted(range(numbers.ndim), key=lambda dim: -cache.stride(dim + 1))
    ordered = cache.permute(0, *(dim + 1 for dim in dims))
    numbers = numbers.transpose(dims)
    outer = next(count for count in range(len(dims) + 1) if ordered[(0,) * (count + 1)].is_contiguous())
    if outer == len(dims):
        raise ConfigError(f"the numbers of a KV cache of shape {tuple(cache.shape)} are scattered in memory")
    for index in np.ndindex(*ordered.shape[1 : outer + 1]):
        part = ordered[(slice(None), *index)]
        size = part.element_size()
        yield Slab(
            _bytes(part, int(part.storage_offset()) * size, part[0].numel() * size, part.stride(0) * size),
            numbers[index].reshape(-1),
        )


def _storage(slab: Slab) -> int:
    """The address of a slab's storage."""
    return slab.memory.untyped_storage().data_ptr()


def _adjacent(left: Slab, right: Slab) -> bool:
    """Whether ``right`` continues ``left`` in every block."""
    first, second = left.memory, right.memory
    return (
        _storage(left) == _storage(right)
        and first.stride(0) == second.stride(0)
        and first.storage_offset() + first.shape[1] == second.storage_offset()
        # Otherwise ``right`` is the next block's memory.
        and second.storage_offset() + second.shape[1] - first.storage_offset() <= first.stride(0)
    )


def _joined(slabs: Sequence[Slab]) -> Slab:
    first = slabs[0].memory
    size = sum(slab.memory.shape[1] for slab in slabs)
    memory = _bytes(first, int(first.storage_offset()), size, first.stride(0))
    return Slab(memory, np.concatenate([slab.elements for slab in slabs]))


def _bytes(like: torch.Tensor, offset: int, size: int, stride: int) -> torch.Tensor:
    """``size`` bytes of each of the blocks of ``like``, ``stride`` bytes apart, from ``offset`` in its storage on."""
    memory = torch.empty(0, dtype=torch.uint8, device=like.device)
    return memory.set_(like.untyped_storage(), offset, (like.shape[0], size), (stride, 1))
