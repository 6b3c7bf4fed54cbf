"""A GGUF file becomes a model folder once, and anything else in its place a ConfigError."""

import json

import psutil
import pytest
from safetensors import safe_open
from tiny_gguf import LAYERS, VOCABULARY, write_tiny_gguf
from tokenizers import Tokenizer

from generator import models
from generator.model_facts import facts_of_folder
from generator.models import ModelStore
from protocol.errors import ConfigError


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "cache")


@pytest.fixture
def conversions(monkeypatch):
    """Notes the files that are converted."""
    seen = []
    convert = models._convert_gguf

    def noting(source, target):
        seen.append(source)
        convert(source, target)

    monkeypatch.setattr(models, "_convert_gguf", noting)
    return seen


def test_a_gguf_file_becomes_a_model_folder_once_for_each_content(store, tmp_path, conversions):
    file = write_tiny_gguf(tmp_path / "my [tiny] model.gguf")
    folder = store.resolve(str(file))
    with safe_open(folder / "model.safetensors", "np") as weights:
        assert f"model.layers.{LAYERS - 1}.mlp.down_proj.weight" in weights.keys()  # noqa: SIM118
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("abz").tokens == ["ab", "z"]

    assert store.resolve(str(file)) == folder
    assert conversions == [file]
    write_tiny_gguf(file, seed=1)
    assert store.resolve(str(file)) != folder
    assert len(store.converted()) == 2


def test_a_converted_model_is_listed_with_its_facts(store, tmp_path):
    folder = store.resolve(str(write_tiny_gguf(tmp_path / "tiny.gguf")))
    assert store.converted() == [folder]
    facts = facts_of_folder(folder, "tiny")
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.context) == (2, 2, 16, 256)
    # Two layers, keys and values, two heads of 16 values of two bytes.
    assert facts.kv_bytes(2) == 2 * 2 * 2 * 16 * 2
    weights = 2 * len(VOCABULARY) * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert facts.parameters == pytest.approx(weights, rel=0.05)


def test_a_folder_with_one_gguf_file_is_that_file(store, tmp_path, conversions):
    (tmp_path / "quantised").mkdir()
    file = write_tiny_gguf(tmp_path / "quantised" / "tiny.gguf")
    store.resolve(str(tmp_path / "quantised"))
    assert conversions == [file]
    (tmp_path / "quantised" / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"several GGUF files.*other\.gguf, tiny\.gguf"):
        store.resolve(str(tmp_path / "quantised"))


@pytest.mark.parametrize("kept", [0, 4, 20, 3000, -500])
def test_a_damaged_gguf_file_is_a_config_error_that_names_it_and_leaves_nothing(store, tmp_path, kept):
    file = write_tiny_gguf(tmp_path / "whole.gguf")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"damaged\.gguf") as wrong:
        store.resolve(str(damaged))
    assert wrong.value.param == "generator.model"
    assert store.converted() == []


def test_a_model_that_memory_cannot_convert_is_refused(store, tmp_path, monkeypatch):
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    there = psutil.virtual_memory()
    monkeypatch.setattr("psutil.virtual_memory", lambda: there._replace(available=100_000))
    with pytest.raises(ConfigError, match=r"takes about 0\.0 GiB of memory.*model folder"):
        store.resolve(str(file))
    assert store.converted() == []


def test_a_file_that_lacks_weights_or_is_one_of_several_parts_is_refused(store, tmp_path):
    lacking = write_tiny_gguf(tmp_path / "lacking.gguf", left_out="blk.1.ffn_down.weight")
    with pytest.raises(ConfigError, match=r"lacking\.gguf.*layers\.1\.mlp\.down_proj\.weight"):
        store.resolve(str(lacking))
    with pytest.raises(ConfigError, match="one of 3 parts"):
        store.resolve(str(write_tiny_gguf(tmp_path / "part.gguf", parts=3)))
    assert store.converted() == []


def test_a_gguf_file_of_another_suffix_is_refused(store, tmp_path):
    file = write_tiny_gguf(tmp_path / "tiny.gguf").rename(tmp_path / "sha256-0123")
    with pytest.raises(ConfigError, match=r"ends in \.gguf"):
        store.resolve(str(file))


def test_other_files_and_missing_ones_are_config_errors(store, tmp_path):
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        store.resolve(str(tmp_path / "notes.txt"))
    with pytest.raises(ConfigError, match=r"missing\.gguf does not exist"):
        store.resolve(str(tmp_path / "missing.gguf"))
