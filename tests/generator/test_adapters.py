import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tiny_adapters import RANK, make_adapter
from tiny_models import llama, make_tiny_model

from generator.adapters import read_adapter
from generator.engines.factory import GeneratorFactory
from generator.engines.vllm_arguments import adapter_places, engine_arguments, has_gpu
from generator.models import ModelStore
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.kv import adapter_of, with_adapter, without_adapter


@pytest.fixture
def adapter(tmp_path, tiny_model):
    return make_adapter(tmp_path / "adapter", tiny_model, seed=1)


def test_read(adapter, tiny_model):
    read = read_adapter("legal", adapter, tiny_model)
    assert (read.name, read.folder, read.rank) == ("legal", adapter, RANK)
    assert read == read_adapter("legal", adapter, tiny_model)


UP = "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight"


def with_tensor(name, tensor):
    def damage(folder):
        tensors = load_file(folder / "adapter_model.safetensors") | {name: tensor}
        save_file(tensors, folder / "adapter_model.safetensors")

    return damage


@pytest.mark.parametrize("change", ["weights", "scale"])
def test_other_weights_have_another_digest(adapter, tiny_model, change):
    before = read_adapter("legal", adapter, tiny_model)
    if change == "weights":
        make_adapter(adapter, tiny_model, seed=2)
    else:
        described = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps(described | {"lora_alpha": 1}))
    assert read_adapter("legal", adapter, tiny_model).digest != before.digest


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LOHA"}'), "is no LoRA adapter"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "is no LoRA adapter"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x08"), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text("[" * 100_000), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": 0}'), "no rank above 0"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": "8"}'), "no rank above 0"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": 9}'), r"has rank 4, and .* \[9\]"),
        (lambda folder: save_file({}, folder / "adapter_model.safetensors"), "has no weights"),
        (with_tensor("x.lora_A.weight", torch.zeros(())), "layer x lacks one of its two matrices"),
        (with_tensor("x.lora_B.weight", torch.zeros(2, RANK)), "layer x lacks one of its two matrices"),
        (with_tensor("x.mlp.base_layer.weight", torch.zeros(2, 2)), "which is no part of LoRA"),
        (with_tensor("x.embed_tokens.lora_embedding_A", torch.zeros(RANK, 9)), "lacks one of its two matrices"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": [4]}'), "no rank above 0"),
        (with_tensor(UP, torch.zeros(64, RANK - 1)), "have different ranks"),
    ],
)
def test_what_is_damaged_is_refused_by_name(adapter, tiny_model, damage, words):
    damage(adapter)
    with pytest.raises(ConfigError, match=rf"^The adapter 'legal' cannot be served: .*{words}"):
        read_adapter("legal", adapter, tiny_model)


def test_adapters_of_other_models_are_refused(tmp_path, tiny_model):
    """vLLM would serve the part of their weights that fits."""
    config = llama()
    config.hidden_size = 32
    narrow = make_adapter(tmp_path / "narrow", make_tiny_model(tmp_path / "narrow-model", config), seed=1)
    with pytest.raises(ConfigError, match=r"for another model: its layer \S+ is \d+ by 32, and that of this one"):
        read_adapter("legal", narrow, tiny_model)
    config = llama()
    config.num_hidden_layers = 3
    deep = make_adapter(tmp_path / "deep", make_tiny_model(tmp_path / "deep-model", config), seed=1)
    with pytest.raises(ConfigError, match=r"for another model: this one has no layer model\.layers\.2"):
        read_adapter("legal", deep, tiny_model)


def test_an_adapter_without_the_second_half_of_a_layer_is_refused(adapter, tiny_model):
    tensors = load_file(adapter / "adapter_model.safetensors")
    tensors.pop(next(name for name in tensors if ".lora_B." in name))
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="lacks one of its two matrices"):
        read_adapter("legal", adapter, tiny_model)


@pytest.mark.parametrize("packed", ["weight", "qweight"])
def test_layers_of_a_model_with_packed_weights_are_compared_by_name(tmp_path, tiny_model, adapter, packed):
    model = tmp_path / "packed"
    model.mkdir()
    tensors = load_file(tiny_model / "model.safetensors")
    packed_weights = {
        name.removesuffix("weight") + packed: torch.zeros(weights.numel() // 2, 1, dtype=torch.uint8)
        for name, weights in tensors.items()
    }
    save_file(packed_weights, model / "model.safetensors")
    assert read_adapter("legal", adapter, model).rank == RANK
    with_tensor("model.layers.7.self_attn.o_proj.lora_A.weight", torch.zeros(RANK, 2))(adapter)
    with_tensor("model.layers.7.self_attn.o_proj.lora_B.weight", torch.zeros(2, RANK))(adapter)
    with pytest.raises(ConfigError, match="for another model"):
        read_adapter("legal", adapter, model)


def test_what_has_no_tensors_of_its_own_in_a_checkpoint_is_left_to_vllm(adapter, tiny_model):
    for layer in ("lm_head", "visual.merger", "model.layers.0.mlp.experts", "model.layers.0.mlp.experts.base_layer"):
        with_tensor(f"base_model.model.{layer}.lora_A.weight", torch.zeros(2 * RANK, 64))(adapter)
        with_tensor(f"base_model.model.{layer}.lora_B.weight", torch.zeros(8, 2 * RANK))(adapter)
    # PEFT writes this beside an adapter of the output layer.
    with_tensor("base_model.model.lm_head.base_layer.weight", torch.zeros(8, 64))(adapter)
    described = json.loads((adapter / "adapter_config.json").read_text())
    pattern = {"lm_head": 2 * RANK, "merger": 2 * RANK}
    (adapter / "adapter_config.json").write_text(json.dumps(described | {"rank_pattern": pattern}))
    read = read_adapter("legal", adapter, tiny_model.parent)
    assert (read.rank, read.features) == (2 * RANK, {"rank_pattern"})


def test_namespaces_of_a_tenant():
    digest = "ab" * 16
    named = with_adapter("00ff", digest)
    assert (adapter_of(named), without_adapter(named)) == (digest, "00ff")
    assert (adapter_of("00ff"), without_adapter("00ff"), with_adapter("00ff", "")) == ("", "00ff", "00ff")
    # Inside the tree, a fingerprint stands before a namespace, and the number of a shard after it.
    assert without_adapter(f"fingerprint/{named}#2") == "fingerprint/00ff#2"
    assert adapter_of(f"fingerprint/{named}#2") == digest
    # Salts of plain vLLM's users.
    for salt in ("bob@ace", f"{named}@example.org"):
        assert (adapter_of(salt), without_adapter(salt)) == ("", salt)


@pytest.mark.parametrize("engine", ["vllm", "fake"])
def test_the_factory_refuses_adapters_that_cannot_be_served(tmp_path, tiny_model, adapter, engine):
    named = {str(tiny_model): str(adapter)} if engine == "vllm" else {"legal": str(adapter)}
    factory = GeneratorFactory(
        GeneratorSettings.model_construct(engine=engine, model=str(tiny_model), adapters=named, engine_args={}),
        ModelStore(tmp_path),
    )
    with pytest.raises(ConfigError, match="The fake engine serves no" if engine == "fake" else "the name of the model"):
        factory.fetch()


def test_the_factory_fetches_adapters_before_any_engine_starts(tmp_path, tiny_model):
    settings = GeneratorSettings(model=str(tiny_model), adapters={"legal": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"'legal' cannot be served: .* has no adapter_config"):
        GeneratorFactory(settings, ModelStore(tmp_path)).fetch()


@pytest.mark.parametrize("name", ["", "two words", "-option", "x" * 129, "line\nbreak"])
def test_names_are_those_of_models(name):
    with pytest.raises(ValidationError, match="String should"):
        GeneratorSettings(adapters={name: "folder"})


def test_vllm_has_room_for_all_adapters_of_the_largest_rank(tmp_path, tiny_model, adapter):
    legal, large, huge = (
        read_adapter("legal", adapter, tiny_model)._replace(name=str(rank), rank=rank) for rank in (RANK, 33, 513)
    )
    arguments = engine_arguments(GeneratorSettings(), tiny_model, "one", [legal, large])
    assert arguments["max_lora_rank"] == 64
    assert arguments["max_cpu_loras"] >= arguments["max_loras"] >= 2
    with pytest.raises(ConfigError, match="'513' cannot be served: its rank is 513"):
        engine_arguments(GeneratorSettings(), tiny_model, "one", [legal, huge])


@pytest.mark.parametrize(
    ("given", "room"),
    [
        ({}, None),
        ({"enable_lora": False}, None),
        ({"enable_lora": False, "max_loras": 4}, None),
        ({"enable_lora": True}, (1, 16)),
        ({"max_loras": 6}, (6, 16)),
        ({"max_loras": 2, "max_lora_rank": 64}, (2, 64)),
    ],
)
def test_there_is_room_for_adapters_that_come_later(tiny_model, given, room):
    arguments = engine_arguments(GeneratorSettings(engine_args=given), tiny_model, "one")
    if room is None:
        assert not arguments.get("enable_lora")
        return
    # One more on a CPU, where vLLM applies what is in the last place to others' requests.
    loras = room[0] + (0 if has_gpu() else 1)
    assert (arguments["enable_lora"], arguments["max_loras"], arguments["max_lora_rank"]) == (True, loras, room[1])
    assert adapter_places(SimpleNamespace(max_loras=loras)) == room[0]


def test_configured_adapters_have_their_room_beside_it(tiny_model, adapter):
    read = [read_adapter(name, adapter, tiny_model) for name in ("legal", "terse")]
    for given, rank in (({}, 8), ({"max_loras": 3}, 16), ({"max_loras": 1}, 8)):
        arguments = engine_arguments(GeneratorSettings(engine_args=given), tiny_model, "one", read)
        places = adapter_places(SimpleNamespace(max_loras=arguments["max_loras"]))
        assert (places, arguments["max_lora_rank"]) == (max(2, given.get("max_loras", 0)), rank)


@pytest.mark.parametrize("given", [{"max_loras": "six"}, {"max_loras": 0.5}, {"max_lora_rank": 1000}])
def test_other_room_is_refused(tiny_model, given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        engine_arguments(GeneratorSettings(engine_args=given), tiny_model, "one")


@pytest.mark.parametrize("name", ["max_cpu_loras", "lora_dtype", "lora_target_modules"])
def test_arguments_that_change_what_adapters_compute_are_refused(tiny_model, adapter, name):
    settings = GeneratorSettings(engine_args={name: 1})
    with pytest.raises(ConfigError, match=f"RAGTree sets {name} itself"):
        engine_arguments(settings, tiny_model, "one", [read_adapter("legal", adapter, tiny_model)])


@pytest.mark.parametrize(("place", "words"), [("", "'' is not absolute"), ("here", "'here' is not absolute")])
def test_relative_folders_are_not_asked_of_the_hub(tmp_path, monkeypatch, place, words):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        ModelStore(tmp_path).adapter(place)
    assert ModelStore(tmp_path).adapter("~/x") == Path.home() / "x"


def test_names_that_no_file_can_have_are_refused(tmp_path, tiny_model):
    with pytest.raises(ConfigError):
        ModelStore(tmp_path).adapter("x" * 300)
    with pytest.raises(ConfigError, match="'legal' cannot be served"):
        read_adapter("legal", tmp_path / ("x" * 300), tiny_model)
