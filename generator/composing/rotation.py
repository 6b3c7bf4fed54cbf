"""Rotates keys to other positions (RoPE: Su et al. 2021, section 3.2)."""

from functools import lru_cache

import torch

_KEPT_MATRICES = 64

MOST_ERROR = 0.03
"""Of a rotation that is right. Rounding to bfloat16 makes 0.01, a wrong rotation more than 1."""


class Rotation:
    """Rotates keys by whole numbers of positions.

    A key at position p is the unrotated key turned by the angle p f in each pair of dimensions, f being the pair's
    frequency. So turning it by d f moves it to position p + d. ``cos_sin`` [positions, rotary_dim] has the cosines and
    sines of each position's angles, and row d those that move a key by d. The first ``rotary_dim`` dimensions of a
    key are turned. The two of a pair lie half of that apart (``neox``), or side by side.
    """

    def __init__(self, cos_sin: torch.Tensor, neox: bool) -> None:
        # Some variants (YaRN) also scale keys. They are scaled once, where they are computed.
        cos, sin = cos_sin.float().chunk(2, dim=-1)
        scale = torch.hypot(cos[:1], sin[:1])
        self._cos, self._sin = cos / scale, sin / scale
        self._dims = 2 * cos.shape[-1]
        dims = torch.arange(self._dims, device=cos.device)
        self._first, self._second = dims.chunk(2) if neox else (dims[::2], dims[1::2])
        # All layers move a document by as much.
        self._matrix = lru_cache(_KEPT_MATRICES)(self._made_matrix)

    def moved(self, keys: torch.Tensor, by: int) -> torch.Tensor:
        """``keys`` [tokens, heads, key_dim], moved by this many positions, forwards or backwards."""
        if by == 0:
            return keys
        # One product takes a third of the time of the two by cosines and sines: keys of a document are few numbers.
        turned = (keys[..., : self._dims].float() @ self._matrix(by)).to(keys.dtype)
        return turned if keys.shape[-1] == self._dims else torch.cat([turned, keys[..., self._dims :]], -1)

    def error(self, keys: torch.Tensor, by: int, expected: torch.Tensor) -> float:
        """How far ``keys``, moved by this many positions, are from those ``expected``, relative to their length."""
        there = expected.float()
        return float((self.moved(keys, by).float() - there).norm() / there.norm())

    def _made_matrix(self, by: int) -> torch.Tensor:
        """The matrix that a row of ``rotary_dim`` numbers is multiplied with."""
        cos, sin = self._cos[abs(by)], self._sin[abs(by)]
        if by < 0:
            sin = -sin
        matrix = cos.new_zeros(self._dims, self._dims)
        matrix[self._first, self._first] = matrix[self._second, self._second] = cos
        matrix[self._first, self._second], matrix[self._second, self._first] = sin, -sin
        return matrix
