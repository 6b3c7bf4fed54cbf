"""Selects the tokens whose KV deviates most in an early layer (CacheBlend: Yao et al. 2025, section 4.3)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.partial_forward import PartialForward, Stop
from generator.composing.runs import best, positions_of, windows
from generator.composing.selection.base import ComposedPrompt, Selection, Selector

_LAYER = 1
"""The first layer whose KV depends on a token's neighbours. Layer 0 sees embeddings alone."""


class CacheBlend(Selector):
    """Computes all tokens up to layer 1, and selects those whose keys and values there differ most from the composed.

    One selection serves all layers. The paper narrows it from layer to layer, which an engine's own layers cannot do:
    they take the same tokens. ``over_ranks`` adds up scores of tensor-parallel ranks.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        forward: PartialForward,
        over_ranks: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._layer = layers[min(_LAYER, len(layers) - 1)]
        self._forward = forward
        self._over_ranks = over_ranks

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """The tokens with the largest squared difference, ``budget`` of them at most."""
        scores = torch.zeros(prompt.question.start, device=prompt.token_ids.device)
        kept = prompt.kv(self._layer, prompt.documents)
        fresh: list[tuple[torch.Tensor, torch.Tensor]] = []

        def capture(module: Any, given: tuple[torch.Tensor, ...]) -> None:  # noqa: ANN401, ARG001  # vLLM is untyped
            fresh.append((given[1], given[2]))
            raise Stop

        hook = self._layer.module.register_forward_pre_hook(capture)
        try:
            self._forward.compute(prompt.token_ids, prompt.documents, prompt.blocks)
        finally:
            hook.remove()
        ((keys, values),) = fresh
        positions = positions_of(prompt.documents, scores.device)
        scores[positions] = _difference(keys, kept.keys) + _difference(values, kept.values)
        return Selection(best(windows(prompt.documents, 1), self._over_ranks(scores), budget))


def _difference(fresh: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The squared difference of each token. Shapes [tokens, any] and [tokens, heads, dim]."""
    return (fresh.float() - kept.flatten(1).float()).square().sum(-1)
