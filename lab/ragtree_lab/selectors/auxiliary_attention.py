"""Selects the windows that the question attends to in an auxiliary model (CacheClip: section 4)."""

from concurrent.futures import Executor, Future

import torch

from generator.composing.deletions import IsDeleted
from generator.composing.runs import WINDOW, best, windows
from generator.composing.selection.base import ComposedPrompt, Content, Selection, Selector
from ragtree_lab.selectors.auxiliary.auxiliary_model import AuxiliaryModel
from ragtree_lab.selectors.auxiliary.document_cache import DocumentCache, ReadDocument
from ragtree_lab.selectors.auxiliary.token_spans import TokenSpans, highest_by_characters

_CROWDED = 6
"""A window is computed again if more than 5 of its tokens are selected (section 4.2)."""


class AuxiliaryAttention(Selector):
    """Asks an auxiliary model what the question attends to, and selects windows of 8 tokens.

    The model keeps its own KV for each document, in ``kept``. ``tokens`` is the tokenizer of the engine's model.
    A ``strict`` selector takes the windows that have more than 5 of the best tokens, which may be few. Another one
    fills its budget with the best windows. The model runs on the one thread of ``beside``, while KV is loaded.
    """

    def __init__(
        self, model: AuxiliaryModel, tokens: TokenSpans, kept: DocumentCache, beside: Executor, *, strict: bool
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._kept = kept
        self._strict = strict
        self._beside = beside

    def scores_beside(self, prompt: ComposedPrompt) -> Future[torch.Tensor]:
        """The score of each position in front of the question."""
        return self._beside.submit(self._scores, prompt)

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """The windows with the highest scores, of ``budget`` tokens at most."""
        candidates = windows(prompt.documents, WINDOW)
        scores = (prompt.scores or self.scores_beside(prompt)).result()
        if not self._strict or not budget:
            return Selection(best(candidates, scores, budget))
        chosen = torch.zeros_like(scores)
        chosen[scores.topk(budget).indices] = 1
        crowded = [run for run in candidates if int(chosen[run.start : run.end].sum()) >= _CROWDED]
        return Selection(best(crowded, chosen, budget))

    def forget(self, is_deleted: IsDeleted) -> None:
        """Drop the KV of deleted documents."""
        self._kept.forget(is_deleted)

    def close(self) -> None:
        """End the thread that the model runs on."""
        self._beside.shutdown(wait=True, cancel_futures=True)

    def _scores(self, prompt: ComposedPrompt) -> torch.Tensor:
        """The score of each position in front of the question."""
        ids = prompt.token_ids.tolist()
        question = self._tokens.of_tokens(ids[prompt.question.start : prompt.question.end]).text
        documents = [
            self._document(ids[run.start : run.end], content, prompt.deletions)
            for run, content in zip(prompt.documents, prompt.contents, strict=True)
        ]
        scores = torch.zeros(prompt.question.start)
        attention = self._model.attention(question, [document.kv for document in documents])
        for run, document, paid in zip(prompt.documents, documents, attention, strict=True):
            scores[run.start : run.end] = highest_by_characters(paid, document.kv.spans, document.spans)
        return scores

    def _document(self, token_ids: list[int], content: Content, deletions: int) -> ReadDocument:
        """A document as the auxiliary model has read it."""
        document = self._kept.get(content)
        if document is None:
            spelled = self._tokens.of_tokens(token_ids)
            document = ReadDocument(self._model.read(spelled.text), spelled.spans)
            self._kept.add(content, document, deletions)
        return document
