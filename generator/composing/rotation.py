"""Rotates keys to other positions (RoPE: Su et al. 2021, section 3.2)."""

import torch

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
        self._neox = neox
        self._pairs = cos.shape[-1]

    def moved(self, keys: torch.Tensor, by: int) -> torch.Tensor:
        """``keys`` [tokens, heads, key_dim], moved by this many positions, forwards or backwards."""
        if by == 0:
            return keys
        cos, sin = self._cos[abs(by)], self._sin[abs(by)]
        if by < 0:
            sin = -sin
        turned = keys[..., : 2 * self._pairs].float()
        moved = torch.empty_like(keys)
        if self._neox:
            first, second = turned[..., : self._pairs], turned[..., self._pairs :]
            moved[..., : self._pairs] = first * cos - second * sin
            moved[..., self._pairs : 2 * self._pairs] = second * cos + first * sin
        else:
            first, second = turned[..., ::2], turned[..., 1::2]
            moved[..., : 2 * self._pairs : 2] = first * cos - second * sin
            moved[..., 1 : 2 * self._pairs : 2] = second * cos + first * sin
        moved[..., 2 * self._pairs :] = keys[..., 2 * self._pairs :]
        return moved

    def error(self, keys: torch.Tensor, by: int, expected: torch.Tensor) -> float:
        """How far ``keys``, moved by this many positions, are from those ``expected``, relative to their length."""
        there = expected.float()
        return float((self.moved(keys, by).float() - there).norm() / there.norm())
