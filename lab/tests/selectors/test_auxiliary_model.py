"""The auxiliary model's KV of documents, moved to other places, against a model that reads the whole prompt."""

import pytest
import torch

pytest.importorskip("vllm")

from tiny_models import llama, make_tiny_model
from transformers import AutoModelForCausalLM

from protocol.errors import ConfigError
from ragtree_lab.selectors.auxiliary.auxiliary_model import AuxiliaryModel

PREFIX = "Documents:\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("auxiliary"), llama())


@pytest.fixture(scope="module")
def model(folder) -> AuxiliaryModel:
    return AuxiliaryModel(folder, torch.float32)


def test_behind_one_document_the_question_attends_as_in_a_whole_prompt(folder, model):
    document, question = "a document", "a question"
    (paid,) = model.attention(question, [model.read(document)])
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # The tokenizer has a token for each byte, in the order of its alphabet.
    ids = model._tokens.of_text(PREFIX + document + question).token_ids
    with torch.no_grad():
        weights = whole(torch.tensor([ids]), output_attentions=True).attentions[-1][0]
    behind = slice(len(PREFIX), len(PREFIX) + len(document))
    expected = weights[:, -len(question) :, behind].mean((0, 1))
    assert torch.allclose(paid, expected, atol=1e-5)


def test_keys_of_the_second_document_are_moved_behind_the_first(model):
    # The keys of layer 0 depend on a token and its position alone.
    first, second = model.read("some text"), model.read("more")
    both = model.read("some textmore")
    moved = model._rotation.moved(second.keys[0], first.tokens)
    assert torch.allclose(moved, both.keys[0][first.tokens :], atol=1e-5)


def test_texts_without_tokens_have_no_attention(model):
    empty = model.read("")
    assert empty.tokens == 0
    assert [paid.shape for paid in model.attention("why?", [empty, model.read("ab")])] == [(0,), (2,)]
    assert model.attention("", [model.read("ab")])[0].tolist() == [0.0, 0.0]


def test_a_folder_without_a_model_is_refused(tmp_path, folder):
    with pytest.raises(ConfigError, match="cannot be read"):
        AuxiliaryModel(tmp_path, torch.float32)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ConfigError, match="cannot be loaded"):
        AuxiliaryModel(tmp_path, torch.float32)
