"""Tokenizers and chat templates of model folders."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_folders import make_model_folder
from prompt_inputs import user

from generator.prompts.chat_template import ChatTemplate
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.errors import ConfigError, InvalidRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("chatml"))


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40))
def test_streamed_tokens_decode_to_the_text(folder, text):
    tokenizer = ModelTokenizer(folder)
    completed = tokenizer.decode_stream()
    assert "".join(completed(token) for token in tokenizer.encode(text)) == text


def test_a_stream_holds_back_an_incomplete_character(folder):
    tokenizer = ModelTokenizer(folder)
    completed = tokenizer.decode_stream()
    assert [completed(token) for token in tokenizer.encode("€")] == ["", "", "€"]


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        ModelTokenizer(tmp_path)


def test_a_broken_tokenizer_is_a_config_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        ModelTokenizer(tmp_path)


def test_a_chat_template_that_does_not_compile_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="does not compile"):
        ModelTokenizer(make_model_folder(tmp_path, "{% for message in messages %}"))


def test_a_chat_template_file_overrides_the_tokenizer_configuration(tmp_path):
    folder = make_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert ChatTemplate(folder).render([user("Hi")]) == "Hi!"


def test_a_chat_template_cannot_leave_its_sandbox(tmp_path):
    escape = "{{ messages.__class__.__base__.__subclasses__() }}"
    layout = SegmentLayout(ModelTokenizer(make_model_folder(tmp_path, escape)), "Answer.", 1000)
    with pytest.raises(InvalidRequest):
        layout.lay_out([user("Why?")], [], 1)


def test_the_token_that_ends_an_answer_is_the_folders(tmp_path):
    folder = make_model_folder(tmp_path)
    assert ChatTemplate(folder).end == "<|end|>"
    (folder / "tokenizer_config.json").unlink()
    assert ChatTemplate(folder).end == ""
