"""A moved key is the key that the model would have computed at the other position."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from generator.composing.attention_layers import Rotation

POSITIONS, HEADS, DIM = 2048, 3, 16


def cos_sin(rotary_dim: int, scale: float = 1.0) -> torch.Tensor:
    frequencies = 10_000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.arange(POSITIONS)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1) * scale


def rotated(keys: torch.Tensor, position: int, rotary_dim: int, neox: bool) -> torch.Tensor:
    """RoPE as in its paper: each pair of dimensions is a complex number, multiplied by that of the angle."""
    cos, sin = cos_sin(rotary_dim)[position].chunk(2)
    turned = keys[..., :rotary_dim]
    pairs = turned.unflatten(-1, (2, -1)).transpose(-1, -2) if neox else turned.unflatten(-1, (-1, 2))
    product = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)
    parts = torch.view_as_real(product)
    flat = (parts.transpose(-1, -2) if neox else parts).flatten(-2)
    return torch.cat([flat, keys[..., rotary_dim:]], -1)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [DIM, DIM // 2])
@given(st.integers(0, POSITIONS - 1), st.integers(0, POSITIONS - 1))
def test_a_moved_key_is_the_one_at_the_new_position(neox, rotary_dim, old, new):
    keys = torch.randn(5, HEADS, DIM, generator=torch.Generator().manual_seed(old))
    moved = Rotation(cos_sin(rotary_dim), neox).moved(rotated(keys, old, rotary_dim, neox), new - old)
    torch.testing.assert_close(moved, rotated(keys, new, rotary_dim, neox), atol=2e-3, rtol=0)


@given(st.integers(-POSITIONS + 1, POSITIONS - 1))
def test_moving_forth_and_back_changes_nothing(by):
    keys = torch.randn(4, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    rotation = Rotation(cos_sin(DIM), neox=True)
    torch.testing.assert_close(rotation.moved(rotation.moved(keys, by), -by), keys, atol=1e-5, rtol=0)


def test_a_scale_of_the_embedding_is_not_applied_twice():
    keys = torch.randn(4, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    plain, scaled = (Rotation(cos_sin(DIM, scale), neox=True).moved(keys, 77) for scale in (1.0, 1.3))
    torch.testing.assert_close(plain, scaled)


def test_moved_keys_keep_their_type():
    keys = torch.randn(4, HEADS, DIM).bfloat16()
    assert Rotation(cos_sin(DIM), neox=True).moved(keys, 3).dtype is torch.bfloat16


def test_each_token_moves_by_its_own_number_of_positions():
    keys = torch.randn(4, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    rotation, by = Rotation(cos_sin(DIM), neox=True), [0, 900, -77, 1]
    moved = rotation.moved(keys, torch.tensor(by))
    alone = [rotation.moved(keys[token : token + 1], positions) for token, positions in enumerate(by)]
    torch.testing.assert_close(moved, torch.cat(alone))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [DIM, DIM // 2])
def test_keys_off_the_engines_device_are_moved_alike(neox, rotary_dim, monkeypatch):
    """As the auxiliary model's, beside an engine on a GPU."""
    keys = torch.randn(5, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    rotation = Rotation(cos_sin(rotary_dim), neox)
    by_kernel = rotation.moved(keys, -123)
    monkeypatch.setattr("generator.composing.attention_layers.current_platform", SimpleNamespace(device_type="cuda"))
    torch.testing.assert_close(rotation.moved(keys, -123), by_kernel)
