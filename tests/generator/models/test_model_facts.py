"""What the layers of a model keep, by its configuration file."""

import json

import pytest
from tiny_models import deepseek, gemma4, gpt_oss, lfm2, llama, llama4, mistral, qwen3_next

from generator.catalogue import CATALOGUE
from generator.model_facts import ModelFacts, facts_of_folder

SIZES = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 512}


def of(folder, config: dict) -> ModelFacts | None:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return facts_of_folder(folder, "m")


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        (llama, "KV of all tokens in 2 layers"),
        (mistral, "KV of the last 64 tokens in 2 layers"),
        (gemma4, "KV of all tokens in 2 layers, KV of the last 64 tokens in 2 layers"),
        (gpt_oss, "KV of all tokens in 1 layer, KV of the last 64 tokens in 1 layer"),
        (llama4, "KV of all tokens in 2 layers, KV of the last 64 tokens in 2 layers"),
        (deepseek, "latent vectors of all tokens in 2 layers"),
        (qwen3_next, "KV of all tokens in 1 layer, a state in 3 layers"),
        (lfm2, "KV of all tokens in 1 layer, a state in 3 layers"),
    ],
)
def test_layers_are_told_by_the_configurations_that_transformers_writes(tmp_path, kind, keeps):
    facts = of(tmp_path, kind().to_dict())
    assert facts.keeps == keeps
    assert facts.composable == (kind is llama)


@pytest.mark.parametrize(
    ("config", "layers", "windowed", "states"),
    [
        ({"sliding_window": 100, "use_sliding_window": False}, 4, 0, 0),
        ({"sliding_window": 100, "sliding_window_pattern": 2}, 2, 2, 0),
        ({"sliding_window": 100, "model_type": "mistral"}, 0, 4, 0),
        ({"full_attention_interval": 4}, 1, 0, 3),
        ({"hybrid_override_pattern": "M-M*"}, 1, 0, 2),
        ({"layers_block_type": ["mamba", "mamba", "attention", "mamba"]}, 1, 0, 3),
    ],
)
def test_layers_are_told_by_what_other_configurations_say(tmp_path, config, layers, windowed, states):
    facts = of(tmp_path, SIZES | config)
    assert (facts.layers, facts.windowed_layers, facts.state_layers) == (layers, windowed, states)


def test_a_models_language_model_counts(tmp_path):
    facts = of(tmp_path, {"vision_config": {}, "text_config": SIZES | {"num_key_value_heads": 2}})
    assert (facts.kv_heads, facts.head_dim, facts.kv_bytes(2)) == (2, 16, 4 * 2 * 2 * 16 * 2)


def test_states_are_as_large_as_vllm_makes_them(tmp_path):
    """As the log of ``test_model_kinds`` has them for these two, and vLLM's shapes of Mamba 2."""
    assert of(tmp_path, qwen3_next().to_dict()).state_values == 3 * (3 * 512 + 4 * 64 * 64)
    assert of(tmp_path, lfm2().to_dict()).state_values == 3 * 2 * 64
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 2, "mamba_d_conv": 4}
    layers = {"layer_types": ["mamba", "attention"] * 2}
    assert of(tmp_path, SIZES | layers | mamba).state_values == 2 * ((128 + 2 * 2 * 32) * 3 + 128 * 32)
    assert of(tmp_path, SIZES | layers).state_values == 0


def test_weights_that_are_quantised_stay_as_they_are(tmp_path):
    plain, quantised = of(tmp_path, SIZES), of(tmp_path, SIZES | {"quantization_config": {"quant_method": "mxfp4"}})
    assert (plain.weight_bytes(4), quantised.weight_bytes(4)) == (2000, 1000)


def test_a_prompt_takes_what_its_windows_and_states_take():
    facts = ModelFacts("m", 1, 2, 1, 8, 512, windowed_layers=3, window=100, state_layers=1, state_values=50)
    assert facts.prompt_bytes(40, 2) == (2 * 16 * 40 + 3 * 16 * 40 + 50) * 2
    assert facts.prompt_bytes(400, 2) == (2 * 16 * 400 + 3 * 16 * 100 + 50) * 2
    assert ModelFacts("m", 1, 2, 16, 192, 512, latent=576).kv_bytes(2) == 2 * 576 * 2


def test_the_catalogue_has_models_of_every_kind():
    kinds = {model.keeps.partition(" in ")[0] for model in CATALOGUE}
    assert kinds == {"KV of all tokens", "latent vectors of all tokens"}
    assert any(model.state_values for model in CATALOGUE)
    assert any(model.windowed_layers for model in CATALOGUE)


@pytest.mark.parametrize(
    "config",
    ["", "{", "[]", '{"num_attention_heads": 4}', '{"num_attention_heads": null}', '{"text_config": 1}'],
)
def test_a_folder_of_another_kind_has_no_facts(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert facts_of_folder(tmp_path, "m") is None


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["a new kind"] * 4},
        # Layers that differ, in configurations that do not list them.
        {"attn_layer_period": 8},
        {"mamba_d_ssm": 16},
        {"linear_attn_config": {}},
        {"attention_chunk_size": 8192},
        {"sliding_window": 4096, "model_type": "gemma2"},
        # Not what it says elsewhere.
        {"num_attention_heads": 0},
        {"num_key_value_heads": [8, 4]},
        {"max_position_embeddings": None},
    ],
    ids=str,
)
def test_nothing_is_said_of_what_a_configuration_does_not_tell(tmp_path, config):
    assert of(tmp_path, SIZES) is not None
    assert of(tmp_path, SIZES | config) is None


def test_nothing_is_said_of_weights_in_another_form(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    assert facts_of_folder(tmp_path, "m") is None
