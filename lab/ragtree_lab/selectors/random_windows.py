"""Selects windows at random: the control that shows whether choosing matters."""

import torch

from generator.composing.runs import WINDOW, best, windows
from generator.composing.selection.base import ComposedPrompt, Selection, Selector


class RandomWindows(Selector):
    """Selects windows at random; the same ones for the same prompt."""

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """Random windows, of ``budget`` tokens at most."""
        draws = torch.Generator().manual_seed(int(prompt.token_ids.sum()))
        scores = torch.zeros(prompt.question.start)
        found = windows(prompt.documents, WINDOW)
        for window, score in zip(found, torch.rand(len(found), generator=draws).tolist(), strict=True):
            scores[window.start : window.end] = score
        return Selection(best(found, scores, budget))
