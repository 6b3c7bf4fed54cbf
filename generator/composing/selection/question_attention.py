"""Selects the windows that the question attends to."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import avg_pool1d

from generator.composing.attention_layers import AttentionLayer
from generator.composing.partial_forward import PartialForward, Stop
from generator.composing.runs import WINDOW, Run, best, windows
from generator.composing.selection.base import ComposedPrompt, Selection, Selector

_AROUND = 8
"""Tokens before and after a token that share its score: what is attended to is understood by its sentence."""


class QuestionAttention(Selector):
    """Runs the question over the composed KV, and selects the windows around what it attends to.

    It runs the last ``asked_tokens`` of the question at most, as if they stood right after the documents. They select
    as well as all, and a conversation before them would cost more than selecting saves.

    A token's score in a layer is the highest attention of any question token in any head: few heads look facts up, and
    a mean over all would drown them. Scores are averaged over the ``layers`` from half to two thirds of the depth, and
    over a token's neighbours in its document. ``highest_of_ranks`` joins the heads of tensor-parallel ranks.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        forward: PartialForward,
        highest_of_ranks: Callable[[torch.Tensor], torch.Tensor],
        asked_tokens: int,
    ) -> None:
        self._layers = layers[len(layers) // 2 : max(2 * len(layers) // 3, len(layers) // 2 + 1)]
        self._forward = forward
        self._highest_of_ranks = highest_of_ranks
        self._asked_tokens = asked_tokens

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """The windows with the highest scores, of ``budget`` tokens at most."""
        attention = self.scores(prompt)
        scores = attention.clone()
        for document in prompt.documents:
            within = slice(document.start, document.end)
            scores[within] = avg_pool1d(scores[within][None], 2 * _AROUND + 1, 1, _AROUND, count_include_pad=False)[0]
        return Selection(best(windows(prompt.documents, WINDOW), scores, budget), attention)

    def scores(self, prompt: ComposedPrompt) -> torch.Tensor:
        """The score of each position up to the end of the last document."""
        context = Run(0, prompt.documents[-1].end)
        highest = [
            _attention(queries, prompt.keys(layer, context), layer.module.impl.scale)
            for layer, queries in zip(self._layers, self._queries(prompt), strict=True)
        ]
        return self._highest_of_ranks(torch.stack(highest)).mean(0)

    def _queries(self, prompt: ComposedPrompt) -> list[torch.Tensor]:
        """The question's queries in each layer, shape [tokens, heads, key_dim]."""
        behind, tokens = prompt.documents[-1].end, min(prompt.question.tokens, self._asked_tokens)
        asked = Run(behind, behind + tokens)
        token_ids = prompt.token_ids.clone()
        token_ids[asked.start : asked.end] = prompt.token_ids[-tokens:]
        queries: list[torch.Tensor] = []

        def capture(module: Any, given: tuple[torch.Tensor, ...]) -> None:  # noqa: ANN401  # vLLM is untyped here
            queries.append(given[0].view(-1, module.num_heads, module.head_size))
            if len(queries) == len(self._layers):
                raise Stop

        hooks = [layer.module.register_forward_pre_hook(capture) for layer in self._layers]
        try:
            self._forward.compute(token_ids, [asked], prompt.blocks)
        finally:
            for hook in hooks:
                hook.remove()
        return queries


def _attention(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """The highest attention of ``queries`` [queries, heads, dim] to each of ``keys`` [keys, kv_heads, dim]."""
    kv_heads = keys.shape[1]
    grouped = queries.view(len(queries), kv_heads, -1, queries.shape[-1]).permute(1, 0, 2, 3).flatten(1, 2)
    scores = torch.bmm(grouped, keys.permute(1, 2, 0)).float() * scale
    return scores.softmax(-1).amax((0, 1))
