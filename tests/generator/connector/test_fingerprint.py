"""Engines share a fingerprint if, and only if, they compute the same KV."""

import shutil
from types import SimpleNamespace

import pytest
from model_folders import make_weights

from generator.connector.worker import fingerprint as module
from generator.connector.worker.fingerprint import fingerprint

LAYOUT = "30 layers of 32 tokens"


class ModelConfig(SimpleNamespace):
    """The part of a Hugging Face configuration that the fingerprint reads. Like that, it notes where it was read."""

    def to_dict(self):
        return {**vars(self), "text_config": {"_name_or_path": self._name_or_path, "heads": 9}}


def config(folder, dtype="float32", cache_dtype="auto", rope_theta=10000.0, ranks=1, **extra):
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder),
            revision=None,
            dtype=dtype,
            quantization=None,
            hf_config=ModelConfig(hidden_size=576, rope_theta=rope_theta, _name_or_path=str(folder)),
            seed=0,
        ),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks, pipeline_parallel_size=1),
        load_config=SimpleNamespace(load_format="auto"),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"host_gib": 1, **extra}),
        speculative_config=None,
    )


def with_drafts(folder, method, draft):
    made = config(folder)
    made.speculative_config = SimpleNamespace(method=method, draft_model_config=config(draft).model_config)
    return made


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    (made / "tokenizer.json").write_text('{"vocab": {"a": 0, "b": 1}}')
    (made / "README.md").write_text("a model")
    return made


def test_the_models_location_does_not_change_the_fingerprint(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    (tmp_path / "moved" / "README.md").write_text("the same model")
    assert fingerprint(config(folder), LAYOUT) == fingerprint(config(tmp_path / "moved"), LAYOUT)


def test_a_draft_model_keeps_kv_in_the_same_pages(folder, tmp_path):
    small, other = (shutil.copytree(folder, tmp_path / name) for name in ("small", "other"))
    (other / "model.safetensors").write_bytes(bytes(range(255, -1, -1)) * 4096)
    found = [fingerprint(with_drafts(folder, "draft_model", draft), LAYOUT) for draft in (small, other)]
    assert len({*found, fingerprint(config(folder), LAYOUT)}) == 3
    # Drafts without layers of their own keep none.
    assert fingerprint(with_drafts(folder, "ngram", small), LAYOUT) == fingerprint(config(folder), LAYOUT)


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"cache_dtype": "fp8"}, {"rope_theta": 500000.0}, {"ranks": 2}]
)
def test_dtype_rope_and_ranks_change_the_fingerprint(folder, change):
    assert fingerprint(config(folder, **change), LAYOUT) != fingerprint(config(folder), LAYOUT)


def test_the_layout_changes_the_fingerprint(folder):
    assert fingerprint(config(folder), "30 layers of 16 tokens") != fingerprint(config(folder), LAYOUT)


def test_the_prompt_layout_changes_the_fingerprint(folder):
    """Keys of documents are hashes of their texts. Another layout makes other tokens of the same texts."""
    fingerprints = {fingerprint(config(folder, **extra), LAYOUT) for extra in ({}, {"prompt_layout": "0f"})}
    fingerprints.add(fingerprint(config(folder, prompt_layout="1e"), LAYOUT))
    assert len(fingerprints) == 3


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_weights_and_tokenizer_change_the_fingerprint(folder, file):
    before = fingerprint(config(folder), LAYOUT)
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    assert fingerprint(config(folder), LAYOUT) != before


@pytest.mark.parametrize("at", [0.1, 0.35, 0.99])
def test_32_mb_of_new_weights_in_a_shard_of_5_gb_change_the_fingerprint(folder, at):
    shard = folder / "model.safetensors"
    make_weights(shard, {f"layer{number}": 50 << 20 for number in range(100)})
    before = fingerprint(config(folder), LAYOUT)
    with shard.open("r+b") as file:
        # Behind the sample that the 64th parts of the file begin with.
        file.seek(shard.stat().st_size * int(64 * at) // 64 + (300 << 10))
        file.write(bytes([7]) * (32 << 20))
    assert fingerprint(config(folder), LAYOUT) != before


def test_a_model_in_one_file_enters_with_its_content(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(5000))
    before = fingerprint(config(model), LAYOUT)
    model.write_bytes(bytes(4999) + b"\1")
    assert fingerprint(config(model), LAYOUT) != before


def test_a_raised_version_of_kv_semantics_changes_the_fingerprint(folder, monkeypatch):
    before = fingerprint(config(folder), LAYOUT)
    monkeypatch.setattr(module, "KV_SEMANTICS", module.KV_SEMANTICS + 1)
    assert fingerprint(config(folder), LAYOUT) != before


@pytest.mark.parametrize(
    ("installed", "shared"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.32.1", False),
        ("0.32.2", True),
        ("0.33.0", False),
        ("0.33.0rc1", False),
        ("0.32.1.dev3+gabc", False),
    ],
)
def test_releases_of_vllm_share_no_kv_unless_they_are_known_to_compute_the_same(folder, monkeypatch, installed, shared):
    monkeypatch.setattr(module, "_SAME_KV", {"0.32.2": "0.32.0"})
    monkeypatch.setattr(module, "_installed", lambda: "0.32.0")
    before = fingerprint(config(folder), LAYOUT)
    monkeypatch.setattr(module, "_installed", lambda: installed)
    assert (fingerprint(config(folder), LAYOUT) == before) is shared


def test_builds_between_releases_share_no_kv(folder, monkeypatch):
    found = set()
    for build in ("0.33.0.dev3+gabc", "0.33.0.dev3+gdef"):
        monkeypatch.setattr(module, "_installed", lambda build=build: build)
        found.add(fingerprint(config(folder), LAYOUT))
    assert len(found) == 2
