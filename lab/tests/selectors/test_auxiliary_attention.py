"""Selection by an auxiliary model's attention, which is given here."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("vllm")

from generator.composing.runs import Run
from generator.composing.selection.base import ComposedPrompt, Content
from ragtree_lab.selectors.auxiliary.auxiliary_model import DocumentKv
from ragtree_lab.selectors.auxiliary.document_cache import DocumentCache
from ragtree_lab.selectors.auxiliary.token_spans import Span, Spelled
from ragtree_lab.selectors.auxiliary_attention import AuxiliaryAttention

DOCUMENTS = [Run(10, 50), Run(50, 90)]
QUESTION = Run(90, 96)
CONTENTS = [Content("a", "first"), Content("a", "second")]


class Letters:
    """A tokenizer with one character to a token."""

    def of_tokens(self, token_ids):
        text = "".join(chr(100 + one) for one in token_ids)
        return Spelled(text, token_ids, [Span(number, number + 1) for number in range(len(token_ids))])


class Pairs:
    """A model with two characters to a token, which attends to these places of the prompt, by their scores."""

    def __init__(self, attended: dict[int, float]) -> None:
        self._attended = attended
        self.read_texts: list[str] = []

    def read(self, text):
        self.read_texts.append(text)
        return DocumentKv([], [], [Span(start, start + 2) for start in range(0, len(text), 2)])

    def attention(self, question, documents):
        assert len(question) == QUESTION.tokens
        paid = [torch.zeros(document.tokens) for document in documents]
        for place, score in self._attended.items():
            within = place >= DOCUMENTS[1].start
            paid[within][(place - DOCUMENTS[within].start) // 2] = score
        return paid


@pytest.fixture
def selector():
    """Makes a selector and the model that it asks."""
    with ThreadPoolExecutor(1) as beside:

        def make(attended: dict[int, float], strict: bool = False) -> tuple[AuxiliaryAttention, Pairs]:
            model = Pairs(attended)
            return AuxiliaryAttention(model, Letters(), DocumentCache(1000), beside, strict=strict), model

        yield make


def prompt() -> ComposedPrompt:
    return ComposedPrompt(torch.arange(QUESTION.end), torch.arange(6), DOCUMENTS, QUESTION, CONTENTS)


def test_the_window_that_is_attended_to_is_selected(selector):
    assert selector({62: 0.9})[0].select(prompt(), budget=8).runs == [Run(58, 66)]


def test_a_strict_selector_takes_windows_that_are_crowded(selector):
    crowded = dict.fromkeys(range(58, 64), 0.9)
    assert selector(crowded, strict=True)[0].select(prompt(), budget=6).runs == []
    assert selector(crowded, strict=True)[0].select(prompt(), budget=8).runs == [Run(58, 66)]
    lonely = {12: 0.9, 30: 0.8, 52: 0.7, 70: 0.6}
    assert selector(lonely, strict=True)[0].select(prompt(), budget=8).runs == []


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_is_selected_without_a_budget(selector, strict):
    assert selector({62: 0.9}, strict)[0].select(prompt(), budget=0).runs == []


def test_each_document_is_read_once(selector):
    asked, model = selector({62: 0.9})
    for _ in range(3):
        asked.select(prompt(), budget=8)
    assert len(model.read_texts) == 2


def test_what_was_computed_beside_the_engine_serves_although_a_document_is_missing(selector):
    asked, model = selector({62: 0.9, 12: 0.8})
    scores = asked.scores_beside(prompt())
    loaded = prompt()._replace(documents=DOCUMENTS[1:], contents=CONTENTS[1:], scores=scores)
    assert asked.select(loaded, budget=8).runs == [Run(58, 66)]
    assert asked.select(prompt()._replace(scores=scores), budget=16).runs == [Run(10, 18), Run(58, 66)]
    assert len(model.read_texts) == 2
