"""Rotates keys to other positions (RoPE: Su et al. 2021, section 3.2)."""

import torch
from vllm import _custom_ops as kernels
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

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
        cos, sin = cos / scale, sin / scale
        backwards, forwards = torch.cat([cos, -sin], -1), torch.cat([cos, sin], -1)
        self._cos_sin = torch.cat([backwards.flip(0), forwards[1:]])
        self._still = len(cos) - 1
        self._neox = neox

    def moved(self, keys: torch.Tensor, by: int | torch.Tensor) -> torch.Tensor:
        """``keys`` [tokens, heads, key_dim], moved by this many positions, forwards or backwards.

        If ``by`` is a tensor [tokens], it has a number for each token.
        """
        if isinstance(by, int):
            if by == 0:
                return keys
            by = torch.full((len(keys),), by, device=keys.device)
        # vLLM's own kernel takes a seventh of the time that a product with a matrix does. It works in place.
        moved = keys.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        rows, width = by + self._still, keys.shape[-1]
        if keys.device.type == current_platform.device_type:
            kernels.rotary_embedding(rows, moved.flatten(1), None, width, self._cos_sin, self._neox)
        else:
            # The auxiliary model's keys beside an engine on a GPU, whose vLLM has no kernel for a CPU.
            turned = self._cos_sin.shape[-1]
            moved, _ = RotaryEmbedding.forward_static(rows, moved, None, width, turned, self._cos_sin, self._neox)
        return moved.to(keys.dtype)

    def error(self, keys: torch.Tensor, by: int, expected: torch.Tensor) -> float:
        """How far ``keys``, moved by this many positions, are from those ``expected``, relative to their length."""
        there = expected.float()
        return float((self.moved(keys, by).float() - there).norm() / there.norm())
