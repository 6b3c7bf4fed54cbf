"""Selection by the question's attention, on layers whose queries and keys are given."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

from generator.composing.partial_forward import Stop
from generator.composing.runs import Run
from generator.composing.selection.base import ComposedPrompt
from generator.composing.selection.question_attention import QuestionAttention

ASKED_TOKENS = 8
LAYERS, HEADS, KV_HEADS, DIM = 12, 4, 2, 8
DOCUMENTS = [Run(10, 50), Run(50, 90)]
QUESTION = Run(90, 96)


class Attention(torch.nn.Module):
    num_heads, head_size = HEADS, DIM
    impl = SimpleNamespace(scale=1.0)

    def forward(self, queries):
        return queries


class Layer:
    """A layer with these keys of the prompt, shape [tokens, kv heads, dim]."""

    def __init__(self, keys) -> None:
        self.module = Attention()
        self._keys = keys

    def keys(self, blocks, tokens):
        return self._keys[tokens.start : tokens.stop]


class Forward:
    """Runs layers on given queries, shape [tokens, heads, dim], and notes how many layers began."""

    def __init__(self, layers, queries) -> None:
        self._layers = layers
        self._queries = queries
        self.begun = 0

    def compute(self, token_ids, runs, blocks):
        assert runs == [QUESTION]
        for layer, queries in zip(self._layers, self._queries, strict=True):
            self.begun += 1
            try:
                layer.module(queries.flatten(1))
            except Stop:
                return


def prompt() -> ComposedPrompt:
    return ComposedPrompt(torch.arange(QUESTION.end), torch.arange(6), DOCUMENTS, QUESTION)


def selected(looked_up: int, layer: int, head: int, budget: int, ranks=lambda scores: scores):
    """What is selected if one question token looks a position up, in one head of one layer."""
    keys = torch.zeros(LAYERS, QUESTION.start, KV_HEADS, DIM)
    queries = torch.zeros(LAYERS, QUESTION.tokens, HEADS, DIM)
    keys[layer, looked_up, head // (HEADS // KV_HEADS), 0] = 10.0
    queries[layer, 2, head, 0] = 10.0
    layers = [Layer(each) for each in keys]
    forward = Forward(layers, queries)
    selection = QuestionAttention(layers, forward, ranks, ASKED_TOKENS).select(prompt(), budget)
    # The layers behind the last one that is looked at are not computed.
    assert forward.begun == 2 * LAYERS // 3
    return selection.runs


def test_of_a_long_question_the_last_tokens_are_run_behind_the_documents():
    long = Run(90, 90 + 2 * ASKED_TOKENS)
    ran = []

    class Noting:
        def compute(self, token_ids, runs, blocks):
            ((start, end),) = runs
            ran.append((start, token_ids[start:end].tolist()))
            layers[6].module(torch.zeros(end - start, HEADS * DIM))
            layers[7].module(torch.zeros(end - start, HEADS * DIM))

    layers = [Layer(torch.zeros(long.start, KV_HEADS, DIM)) for _ in range(LAYERS)]
    asked = ComposedPrompt(torch.arange(long.end), torch.arange(20), DOCUMENTS, long)
    with pytest.raises(Stop):
        QuestionAttention(layers, Noting(), lambda scores: scores, ASKED_TOKENS).select(asked, budget=8)
    assert ran == [(90, list(range(90 + ASKED_TOKENS, 90 + 2 * ASKED_TOKENS)))]
    assert asked.token_ids.tolist() == list(range(long.end))


@pytest.mark.parametrize("head", range(HEADS))
@pytest.mark.parametrize("layer", [6, 7])
def test_one_head_of_one_layer_suffices_to_find_what_is_looked_up(layer, head):
    (run,) = selected(61, layer, head, budget=8)
    assert run == Run(58, 66)


def test_the_attention_to_single_tokens_comes_with_the_selection():
    keys = torch.zeros(LAYERS, QUESTION.start, KV_HEADS, DIM)
    queries = torch.zeros(LAYERS, QUESTION.tokens, HEADS, DIM)
    keys[6:8, 61, :, 0] = queries[6:8, :, :, 0] = 10.0
    layers = [Layer(each) for each in keys]
    selection = QuestionAttention(layers, Forward(layers, queries), lambda scores: scores, ASKED_TOKENS).select(
        prompt(), budget=8
    )
    assert selection.attention.shape == (QUESTION.start,)
    # Scores of windows are means over neighbours, this is not.
    assert selection.attention.argmax() == 61
    assert selection.attention[61] > 100 * selection.attention[62]


def test_what_stands_around_it_comes_next_and_never_from_another_document():
    assert selected(61, 6, 0, budget=24) == [Run(50, 74)]
    assert selected(50, 6, 0, budget=16) == [Run(50, 66)]


def test_other_layers_do_not_count():
    assert selected(61, 5, 0, budget=8) == selected(20, 8, 0, budget=8)


def test_heads_of_all_ranks_count():
    def other_rank(scores):
        scores = scores.clone()
        scores[:, 30] = 1.0
        return scores

    assert selected(61, 6, 0, 8, lambda scores: other_rank(scores) * 1.0)[0].start in range(24, 34)
