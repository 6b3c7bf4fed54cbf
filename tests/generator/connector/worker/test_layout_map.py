"""What an element of a page is, is learnt for any layout, and tells layouts apart."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from generator.connector.blocks.layout_map import KvShape, LayerWriter, LayoutMap, learn_indexes
from generator.connector.blocks.paged_blocks import LayerPlaces
from generator.connector.refusal import UnsupportedByConnector
from protocol.errors import ConfigError

SHAPE = KvShape(tokens=16, heads=3, key_dim=8, value_dim=8)
TOKENS, HEADS, DIM = SHAPE[:3]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]


class Layout:
    """A layout of one block: the shape of its cache, its dimension of blocks, and how a backend writes into it."""

    def __init__(self, cache_shape: tuple[int, ...], block_dim: int, write: Callable, shape: KvShape = SHAPE) -> None:
        self.shape = shape
        self.quantised = None
        self.write = write
        self._cache_shape = cache_shape
        self._block_dim = block_dim

    def scratch(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache of one block, and its page."""
        cache = torch.zeros(self._cache_shape, dtype=dtype)
        return cache, cache.movedim(self._block_dim, 0)[0]

    def learn(self, dtype: torch.dtype = torch.bfloat16) -> LayoutMap:
        return LayoutMap(self.shape, self.learn_indexes(dtype))

    def digest(self, dtype: torch.dtype = torch.bfloat16) -> str:
        """That of a layer with this layout."""
        places = self.learn(dtype).element_of
        return LayerPlaces("layer.0", self.shape, places, places).digest

    def learn_indexes(self, dtype: torch.dtype = torch.bfloat16) -> np.ndarray:
        return learn_indexes("layer.0", *self.scratch(dtype), self)


def kv_heads_tokens(cache, keys, values):
    cache[0, 0], cache[0, 1] = keys.transpose(0, 1), values.transpose(0, 1)


def values_first(cache, keys, values):
    kv_heads_tokens(cache, values, keys)


def kv_blocks_tokens(cache, keys, values):
    cache[0, 0], cache[1, 0] = keys, values


def keys_behind_values_in_each_head(cache, keys, values):
    cache[0] = torch.cat([keys, values], dim=-1).transpose(0, 1)


def interleaved(cache, keys, values):
    cache[0] = torch.stack([keys, values], dim=-1).flatten(-2).transpose(0, 1)


def dims_before_tokens(cache, keys, values):
    cache[0, 0], cache[0, 1] = keys.permute(1, 2, 0), values.permute(1, 2, 0)


def dims_before_heads(cache, keys, values):
    cache[0, :, 0], cache[0, :, 1] = keys.transpose(1, 2), values.transpose(1, 2)


def heads_reversed(cache, keys, values):
    cache[0, 0], cache[1, 0] = keys.flip(1), values.flip(1)


LAYOUTS = {
    "K/V, heads, tokens": Layout((1, 2, HEADS, TOKENS, DIM), 0, kv_heads_tokens),
    "V/K, heads, tokens": Layout((1, 2, HEADS, TOKENS, DIM), 0, values_first),
    "K/V of all blocks, tokens, heads": Layout((2, 1, TOKENS, HEADS, DIM), 1, kv_blocks_tokens),
    "heads, tokens, K and V": Layout((1, HEADS, TOKENS, 2 * DIM), 0, keys_behind_values_in_each_head),
    "heads, tokens, K and V by turns": Layout((1, HEADS, TOKENS, 2 * DIM), 0, interleaved),
    "K/V, heads, dims, tokens": Layout((1, 2, HEADS, DIM, TOKENS), 0, dims_before_tokens),
    "tokens, K/V, dims, heads": Layout((1, TOKENS, 2, DIM, HEADS), 0, dims_before_heads),
    "K/V of all blocks, tokens, heads reversed": Layout((2, 1, TOKENS, HEADS, DIM), 1, heads_reversed),
}
OTHER_SHAPES = {
    "values of another dimension": Layout(
        (1, 2, 4, 24), 0, keys_behind_values_in_each_head, KvShape(tokens=4, heads=2, key_dim=16, value_dim=8)
    ),
    "one number each": Layout((1, 2, 1, 1, 1), 0, kv_heads_tokens, KvShape(1, 1, 1, 1)),
    "more than two digits": Layout((1, 2, 8, 128, 256), 0, kv_heads_tokens, KvShape(128, 8, 256, 256)),
}


def assert_learnt(layout, indexes: np.ndarray, cache: torch.Tensor, page: torch.Tensor) -> None:
    """Assert that a page of random numbers has them where the indexes say, and those of a token where the map says."""
    shape = layout.shape
    keys = torch.randint(1, 100, (shape.tokens, shape.heads, shape.key_dim)).to(cache.dtype)
    values = torch.randint(1, 100, (shape.tokens, shape.heads, shape.value_dim)).to(cache.dtype)
    layout.write(cache, keys, values)
    numbers = torch.cat([keys.flatten(), values.flatten()])
    assert torch.equal(page.reshape(-1), numbers[torch.from_numpy(indexes.astype(np.int64))])
    before, token = page.clone(), shape.tokens // 2
    keys[token] += 20
    values[token] += 20
    layout.write(cache, keys, values)
    changed = (page != before).reshape(-1).numpy()
    assert ((LayoutMap(shape, indexes).token_of == token) == changed).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *OTHER_SHAPES.values()], ids=[*LAYOUTS, *OTHER_SHAPES])
def test_every_element_is_learnt(layout, dtype):
    assert_learnt(layout, layout.learn_indexes(dtype), *layout.scratch(dtype))


def test_digests_tell_layouts_apart():
    digests = {layout.digest() for layout in [*LAYOUTS.values(), *OTHER_SHAPES.values()]}
    assert len(digests) == len(LAYOUTS) + len(OTHER_SHAPES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("K/V, heads, tokens", "V/K, heads, tokens"),
        ("heads, tokens, K and V", "heads, tokens, K and V by turns"),
        ("K/V of all blocks, tokens, heads", "K/V of all blocks, tokens, heads reversed"),
    ],
)
def test_layouts_that_differ_in_heads_dims_or_kv_alone_have_other_digests(one, other):
    first, second = LAYOUTS[one].learn(), LAYOUTS[other].learn()
    assert (first.token_of == second.token_of).all()
    assert LAYOUTS[one].digest() != LAYOUTS[other].digest()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_equal_layouts_have_equal_digests_whatever_their_dtype(layout):
    assert len({layout.digest(dtype) for dtype in DTYPES}) == 1


def nothing(cache, keys, values):
    pass


def one_head_missing(cache, keys, values):
    keys[:, 1] = 0
    kv_heads_tokens(cache, keys, values)


def values_over_keys(cache, keys, values):
    kv_heads_tokens(cache, keys, values)
    cache[0, 0] = cache[0, 1]


def one_token_for_all(cache, keys, values):
    kv_heads_tokens(cache, keys[:1].expand_as(keys), values)


def scaled(cache, keys, values):
    kv_heads_tokens(cache, keys / 2, values / 2)


@pytest.mark.parametrize("write", [nothing, one_head_missing, values_over_keys, one_token_for_all, scaled])
def test_a_backend_that_does_not_keep_every_number_is_refused(write):
    with pytest.raises(ConfigError, match=r"the attention backend of layer layer\.0 keeps keys and values"):
        Layout((1, 2, HEADS, TOKENS, DIM), 0, write).learn()


def test_a_backend_that_is_called_in_another_way_is_refused():
    with pytest.raises(UnsupportedByConnector, match=r"cannot write as the attention backend of layer layer\.0 does"):
        Layout((1, 2, HEADS, TOKENS, DIM), 0, lambda cache, keys: None).learn()


def test_padding_is_refused():
    def write(cache, keys, values):
        cache[0, ..., : 2 * DIM] = torch.cat([keys, values], dim=-1)

    with pytest.raises(ConfigError):
        Layout((1, TOKENS, HEADS, 2 * DIM + 2), 0, write).learn()


def test_more_digits_than_the_dtype_has_are_not_needed():
    """The largest mark is exact in every dtype."""
    marks = torch.arange(65)
    for dtype in DTYPES:
        assert torch.equal(marks.to(dtype).long(), marks)


@pytest.mark.vllm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_layout_of_vllms_attention_on_a_cpu_is_learnt(model, dtype):
    pytest.importorskip("vllm")
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, _get_attn_isa

    if torch.cuda.is_available():
        pytest.skip("vLLM is built for a GPU")
    heads, dim, tokens = 3, 64, 32
    with set_current_vllm_config(VllmConfig(model_config=ModelConfig(str(model), dtype=dtype))):
        backend = CPUAttentionBackendImpl(9, dim, 1.0, heads, None, None, "auto")
    layer = SimpleNamespace(
        num_kv_heads=heads,
        head_size=dim,
        head_size_v=dim,
        isa=_get_attn_isa(dtype, tokens, dim, "auto"),
        _k_scale_float=1.0,
        _v_scale_float=1.0,
        impl=backend,
    )
    writer = LayerWriter(layer, tokens)
    cache = torch.zeros((1, heads, tokens, 2 * dim), dtype=dtype)
    assert_learnt(writer, learn_indexes("layer.0", cache, cache[0], writer), cache, cache[0])
