"""Which blocks of a prompt the tokens that are computed again attend to."""

from collections.abc import Sequence

import torch

from generator.composing.runs import Run

_FRONT_TOKENS = 128
"""Everything attends to the prompt's front: it holds the system prompt, and the first tokens are attention sinks
(Xiao et al. 2024)."""

_LEAST_SHARE = 0.5
"""Of the blocks between the front and a document. With less, answers from several documents deviate more."""

_SHARE_PER_RECOMPUTED = 2.0
"""The more is computed again, the more it attends to. From half of the tokens on, that is everything."""


class AttendedBlocks:
    """The blocks that matter to the question, for tokens of ``documents`` that are computed again.

    Half of what computing a token again costs is its attention to what is in front of it, most of which the question
    does not ask for. So a token attends to the prompt's front, to its own document, and to those blocks between them to
    which the question pays the most ``attention``. That has one value for each position up to the end of the last
    document. The share of these blocks rises with the ``share`` of tokens that is computed again, up to all of them.
    """

    def __init__(self, attention: torch.Tensor, documents: Sequence[Run], share: float, page_tokens: int) -> None:
        pages = -(-len(attention) // page_tokens)
        padded = attention.new_zeros(pages * page_tokens)
        padded[: len(attention)] = attention
        self._best_first = padded.view(pages, page_tokens).amax(1).argsort(descending=True).cpu()
        self._page_tokens = page_tokens
        self._front = -(-_FRONT_TOKENS // page_tokens)
        self._share = min(1.0, max(_LEAST_SHARE, _SHARE_PER_RECOMPUTED * share))
        self._documents = [(document, self._in_front_of(document)) for document in documents]

    def of(self, run: Run) -> torch.Tensor:
        """The blocks that a run of tokens attends to, by their place in the prompt, ascending. The last is the run's.

        A run that no document holds whole attends to all blocks.
        """
        end = -(-run.end // self._page_tokens)
        for document, in_front in self._documents:
            if document.start <= run.start and run.end <= document.end:
                own = torch.arange(document.start // self._page_tokens, end)
                return torch.cat([in_front, own])
        return torch.arange(end)

    def _in_front_of(self, document: Run) -> torch.Tensor:
        """The blocks in front of a document's own ones that its tokens attend to."""
        own = document.start // self._page_tokens
        front = min(self._front, own)
        between = self._best_first[(self._best_first >= front) & (self._best_first < own)]
        best = between[: round(self._share * len(between))]
        return torch.cat([torch.arange(front), best.sort().values])
