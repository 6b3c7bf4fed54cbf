"""How far the KV of tokens that were computed again is from the KV that they had before."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.composed_prompt import ComposedPrompt
from generator.composing.runs import Run


class TooFar(Exception):
    """The deviation of a prompt exceeds its bound."""

    def __init__(self, deviation: float, bound: float) -> None:
        super().__init__(f"the KV that was computed again deviates by {deviation:.2f}, more than {bound:.2f}")
        self.deviation = deviation


class Before(NamedTuple):
    """Keys and values of ``runs`` before they are computed again, shape [tokens, any]; None if there are none."""

    runs: Sequence[Run]
    kv: torch.Tensor | None


class Deviation:
    """Measures it in one ``layer``: the length of the difference, relative to that of the fresh keys and values.

    ``over_ranks`` adds up sums of tensor-parallel ranks, so that all of them find the same.
    """

    def __init__(self, layer: AttentionLayer, over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._layer = layer
        self._over_ranks = over_ranks

    def before(self, prompt: ComposedPrompt, runs: Sequence[Run]) -> Before:
        """Take a copy of what is about to be computed again."""
        return Before(runs, self._kv(prompt, runs) if runs else None)

    def since(self, before: Before, prompt: ComposedPrompt) -> float:
        """The deviation of what was computed since; 0 if that was nothing."""
        if before.kv is None:
            return 0.0
        fresh = self._kv(prompt, before.runs)
        sums = torch.stack([(fresh - before.kv).square().sum(), fresh.square().sum()])
        difference, length = self._over_ranks(sums).tolist()
        return float((difference / length) ** 0.5) if length else 0.0

    def _kv(self, prompt: ComposedPrompt, runs: Sequence[Run]) -> torch.Tensor:
        keys, values = prompt.kv(self._layer, runs)
        return torch.cat([keys.flatten(1), values.flatten(1)], 1).float()
