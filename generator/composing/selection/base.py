"""The contract of selectors, and a prompt that is being composed as they see it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer, LayerKv
from generator.composing.deletions import IsDeleted
from generator.composing.runs import Run, positions_of


class Content(NamedTuple):
    """A document's content hash, in a namespace."""

    namespace: str
    key: str


class ComposedPrompt(NamedTuple):
    """A prompt in an engine's ``blocks``: ``documents`` have KV that was computed elsewhere, moved to its positions.

    ``token_ids`` are the prompt's. The ``question`` comes after all documents; its KV is not there yet, and may have
    no blocks. One block more than the documents need is there to write to. ``contents``
    name the documents. Before the prompt was begun, documents were deleted ``deletions`` times. ``scores`` are those of
    each position before the question, if a selector computes them beside the engine.
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


class Selection(NamedTuple):
    """Ascending ``runs`` within a prompt's documents, which are computed again.

    ``attention`` is what the question pays to each position up to the end of the last document, if the selector has
    measured it on the engine's own KV.
    """

    runs: Sequence[Run]
    attention: torch.Tensor | None = None


class Selector(ABC):
    """Chooses which tokens of a prompt's composed documents are computed again."""

    @abstractmethod
    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """Select ``budget`` tokens at most.

        May write KV after the last document, up to the end of ``ComposedPrompt.blocks``, but nothing else.
        """

    def scores_beside(self, prompt: ComposedPrompt) -> Future[torch.Tensor] | None:  # noqa: ARG002
        """What a selector that does not use the engine can compute while the documents' KV is loaded; None if it does.

        ``select`` finds it in ``ComposedPrompt.scores``. Some of the documents may be missing there.
        """
        return None

    def forget(self, is_deleted: IsDeleted) -> None:  # noqa: B027 - most keep nothing
        """Drop what is kept of deleted documents."""

    def close(self) -> None:  # noqa: B027 - most run nothing
        """End what runs beside the engine."""


class Nothing(Selector):
    """Selects nothing: each document keeps the KV that it has on its own, as in Shared RAG-DCache (direct reuse)."""

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:  # noqa: ARG002
        """No runs."""
        return Selection(())
