"""A prompt that is being composed, as selectors see it."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.codec import LayerKv
from generator.composing.runs import Run, positions_of


class Content(NamedTuple):
    """A document's content hash, in a namespace."""

    namespace: str
    key: str


class ComposedPrompt(NamedTuple):
    """A prompt in an engine's ``blocks``: ``documents`` have KV that was computed elsewhere, moved to its positions.

    ``token_ids`` are the prompt's. The ``question`` stands behind all documents; its KV is not there yet, and may have
    no blocks. One block more than the documents need is there to write to. ``contents``
    name the documents. Before the prompt was begun, documents were deleted ``deletions`` times. ``scores`` are those of
    each position in front of the question, if a selector computes them beside the engine.
    """

    token_ids: torch.Tensor
    blocks: torch.Tensor
    documents: Sequence[Run]
    question: Run
    contents: Sequence[Content] = ()
    deletions: int = 0
    scores: Future[torch.Tensor] | None = None

    def keys(self, layer: AttentionLayer, run: Run) -> torch.Tensor:
        """A layer's keys of a run of tokens, shape [tokens, heads, key_dim]."""
        return layer.keys(self.blocks, slice(run.start, run.end))

    def kv(self, layer: AttentionLayer, runs: Sequence[Run]) -> LayerKv:
        """A layer's keys and values of the tokens of runs, in their order."""
        return layer.kv(self.blocks, positions_of(runs, self.blocks.device))
