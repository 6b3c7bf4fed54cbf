"""Where a block's bytes lie in an engine's KV caches, and where in them the keys and values of its tokens.

The latter is learnt from the attention backend itself. Each number of the keys and values is written as its own index,
so each element of the block tells what it is. Not every dtype represents an index exactly. So it is written digit by
digit, in several passes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from generator.connector.refusal import UnsupportedByConnector

_BASE = 64
"""Of the digits. They are written as 1 to 64, which bfloat16 and float16 represent exactly; 0 means unwritten."""

_QUANTISED_BASE = 8
"""Of the digits in a quantised cache. Both kinds of FP8 represent 1 to 8 exactly."""


class Axes(NamedTuple):
    """Axes in C order from the element ``first`` on, by ``sizes`` and ``strides``, counted in elements."""

    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def axes_of(places: NDArray[np.int64]) -> Axes | None:
    """The axes along which ``places`` lie, one or several for each of their dimensions. None if they lie along none."""
    first = places.flat[0]
    offsets = [_offsets(places, dim) - first for dim in range(places.ndim)]
    if not np.array_equal(places - first, reduce(np.add.outer, offsets)):
        return None
    nested = [list(_nested(along)) for along in offsets]
    if any(np.prod([size for size, _ in axes]) != len(along) for axes, along in zip(nested, offsets, strict=True)):
        return None
    sizes, strides = zip(*(axis for axes in nested for axis in axes), strict=True)
    return Axes(int(first), sizes, strides)


def _offsets(places: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """The places along one dimension, at the beginning of all others."""
    return places[tuple(slice(None) if other == dim else 0 for other in range(places.ndim))]


def _nested(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Sizes and strides of nested axes whose offsets these are, outermost first; too few if there are none."""
    size = len(offsets)
    if size == 1:
        yield 1, 0
        return
    stride = int(offsets[1])
    steps = np.diff(offsets) == stride
    run = size if steps.all() else int(np.argmin(steps)) + 1
    if run == size:
        yield size, stride
    elif run > 1 and size % run == 0:
        rows = offsets.reshape(-1, run)
        if np.array_equal(rows, rows[:, :1] + rows[:1]):
            yield from _nested(rows[:, 0])
            yield run, stride


class Slab(NamedTuple):
    """Dense memory of every block: ``memory`` has shape [blocks, bytes] and dtype uint8.

    ``elements`` are the numbers of its elements, as ``slabs_of`` counts them, in the order of memory.
    """

    memory: torch.Tensor
    elements: NDArray[np.uint32]


def slabs_of(caches: Sequence[torch.Tensor]) -> list[Slab]:
    """The memory of each block of ``caches``, whose first dimension is the blocks, in as few slabs as possible.

    A layer has one slab if its blocks are dense, and several if, for example, all keys lie before all values. A
    layout that keeps a block's layers next to each other has one slab for all. The elements of a block are
    counted layer by layer, in the order of each layer's own dimensions. Raises UnsupportedByConnector if numbers
    are scattered.
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
        raise UnsupportedByConnector(f"the numbers of a KV cache of shape {tuple(cache.shape)} are scattered in memory")
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


class KvShape(NamedTuple):
    """A layer's keys, shape [tokens, heads, key_dim], and values, shape [tokens, heads, value_dim], of one block."""

    tokens: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        """How many numbers the keys have."""
        return self.tokens * self.heads * self.key_dim

    @property
    def numbers(self) -> int:
        """How many numbers keys and values have together."""
        return self.keys + self.tokens * self.heads * self.value_dim


class BlockWriter(Protocol):
    """Writes keys and values of ``shape`` into a cache of one block, as an attention backend does."""

    shape: KvShape

    @property
    def quantised(self) -> torch.dtype | None:
        """The dtype of keys and values that the backend turns into codes of one byte, else None."""

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""


class LayerWriter:
    """Writes with the attention backend of a ``layer`` of vLLM, whose blocks have ``tokens`` tokens."""

    def __init__(self, layer: Any, tokens: int, quantised: torch.dtype | None = None) -> None:  # noqa: ANN401  # vLLM is untyped here
        self.shape = KvShape(tokens, layer.num_kv_heads, layer.head_size, layer.head_size_v)
        self.quantised = quantised
        self._layer = layer

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""
        if self.quantised is not None:
            # The backend divides by the layer's scales.
            keys, values = keys * self._layer._k_scale_float, values * self._layer._v_scale_float
        self._layer.impl.do_kv_cache_update(self._layer, keys, values, cache, _slots(self.shape.tokens, cache))


class LatentWriter:
    """Writes into an MLA ``layer`` of vLLM: the keys are the latent vectors, the values the rotary part of the keys."""

    quantised = None

    def __init__(self, layer: Any, tokens: int) -> None:  # noqa: ANN401  # vLLM is untyped here
        self.shape = KvShape(tokens, 1, layer.kv_lora_rank, layer.qk_rope_head_dim)
        self._layer = layer

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""
        layer, shape = self._layer, self.shape
        tokens = cache.view(1, shape.tokens, shape.key_dim + shape.value_dim)
        latent, slots = keys.squeeze(1), _slots(shape.tokens, cache)
        layer.impl.do_kv_cache_update(latent, values, tokens, slots, layer.kv_cache_dtype, layer._k_scale)


def _slots(tokens: int, cache: torch.Tensor) -> torch.Tensor:
    """The slots of the first block."""
    return torch.arange(tokens, dtype=torch.int64, device=cache.device)


class LayoutMap:
    """What each element of a layer's part of a page is.

    ``indexes`` are those of the numbers, as ``learn_indexes`` returns them. ``token_of`` has the token of each element,
    and ``element_of`` the element of each number.
    """

    def __init__(self, shape: KvShape, indexes: NDArray[np.uint32]) -> None:
        self.shape = shape
        self.element_of: NDArray[np.uint32] = np.argsort(indexes).astype(np.uint32)
        in_values = indexes >= shape.keys
        of_token = np.where(in_values, shape.heads * shape.value_dim, shape.heads * shape.key_dim)
        self.token_of: NDArray[np.uint16] = ((indexes - in_values * shape.keys) // of_token).astype(np.uint16)


def learn_indexes(name: str, cache: torch.Tensor, page: torch.Tensor, writer: BlockWriter) -> NDArray[np.uint32]:
    """For each element of ``page``, the index of the number that it holds: keys first, then values, in C order.

    ``cache`` is scratch memory for one block of the layer ``name``. ``page`` is a view of the same memory, with its
    elements in the order in which pages have them. Raises UnsupportedByConnector if the backend writes in
    another way, or if an element holds no number, or not its own.
    """
    try:
        indexes = _indexes(cache, page, writer)
    except (AttributeError, TypeError, RuntimeError) as error:
        # Releases of vLLM differ in how a backend is called.
        raise UnsupportedByConnector(
            f"RAGTree cannot write as the attention backend of layer {name} does: {error}"
        ) from error
    if not np.array_equal(np.sort(indexes), np.arange(writer.shape.numbers)):
        raise UnsupportedByConnector(
            f"RAGTree cannot find out where the attention backend of layer {name} keeps keys and values"
        )
    return indexes.astype(np.uint32)


def _indexes(cache: torch.Tensor, page: torch.Tensor, writer: BlockWriter) -> NDArray[np.int64]:
    """What each element of ``page`` says of itself."""
    shape = writer.shape
    numbers = torch.arange(shape.numbers, device=cache.device)
    indexes = np.zeros(page.numel(), np.int64)
    base = _BASE if writer.quantised is None else _QUANTISED_BASE
    read = _values if writer.quantised is None else _digits_of_codes(cache, page, writer)
    weight = 1
    while weight < shape.numbers:
        _write(cache, numbers // weight % base + 1, writer)
        # An element that is never written gets a negative index.
        indexes += (read(page) - 1) * weight
        weight *= base
    return indexes


def _write(cache: torch.Tensor, digits: torch.Tensor, writer: BlockWriter) -> None:
    """Write one digit for each number of a block."""
    shape = writer.shape
    written = digits.to(writer.quantised or cache.dtype)
    keys, values = written[: shape.keys], written[shape.keys :]
    cache.zero_()
    writer.write(
        cache,
        keys.view(shape.tokens, shape.heads, shape.key_dim),
        values.view(shape.tokens, shape.heads, shape.value_dim),
    )


def _values(page: torch.Tensor) -> NDArray[np.int64]:
    return page.reshape(-1).double().cpu().numpy().astype(np.int64)


def _digits_of_codes(
    cache: torch.Tensor, page: torch.Tensor, writer: BlockWriter
) -> Callable[[torch.Tensor], NDArray[np.int64]]:
    """A function that reads the digits of a quantised page. Each digit's code is what the backend makes of it."""
    digits = np.zeros(256, np.int64)
    for digit in range(1, _QUANTISED_BASE + 1):
        _write(cache, torch.full((writer.shape.numbers,), digit, device=cache.device), writer)
        digits[_codes(page)] = digit
    return lambda page: digits[_codes(page)]


def _codes(page: torch.Tensor) -> NDArray[np.uint8]:
    return page.reshape(-1).view(torch.uint8).cpu().numpy()
