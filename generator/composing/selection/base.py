"""The contract of selectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch

from generator.composing.composed_prompt import ComposedPrompt
from generator.composing.deletions import IsDeleted
from generator.composing.runs import Run


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

        May write KV behind the last document, up to the end of ``ComposedPrompt.blocks``, but nothing else.
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
