"""Small models with random weights, for what depends on a model's shape and not on what it has learnt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SPREAD = 0.15
"""The standard deviation of the weights: large enough that an answer depends on every token of its prompt."""
_ATTENTION = ".self_attn."
_RANK = 8


def make_random_model(folder: Path, source: Path, shape: Mapping[str, Any]) -> Path:
    """Make a model in ``folder``, with the tokenizer of the model in the folder ``source``.

    ``shape`` is what its ``config.json`` has, but for the sizes of the vocabulary. The weights are the same each time.
    Raises ConfigError for a shape of which no model can be made.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

    from protocol.errors import ConfigError

    known = AutoConfig.from_pretrained(source)  # nosec B615  # a folder, not the hub
    tokenizer = AutoTokenizer.from_pretrained(source)  # nosec B615  # the same folder
    kind, sizes = shape.get("model_type"), {name: value for name, value in shape.items() if name != "model_type"}
    try:
        config = AutoConfig.for_model(
            kind,
            **sizes
            | {
                "vocab_size": known.vocab_size,
                "bos_token_id": known.bos_token_id,
                "eos_token_id": known.eos_token_id,
                "pad_token_id": known.eos_token_id,
            },
        )
        set_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise ConfigError(f"no model can be made of the shape of a {kind!r}: {error}") from error
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_random_adapter(folder: Path, model: Path, seed: int) -> Path:
    """Make a LoRA adapter of the attention of a model in ``folder``. The weights are the same for each ``seed``."""
    import torch
    from safetensors.torch import load_file, save_file

    draws = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draws) * _SPREAD

    weights = load_file(model / "model.safetensors")
    attention = sorted(name for name, values in weights.items() if _ATTENTION in name and values.dim() > 1)
    changed = {name.removesuffix(".weight"): weights[name].shape for name in attention}
    tensors = {}
    for layer, (to, of) in changed.items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = drawn(_RANK, of)
        tensors[f"base_model.model.{layer}.lora_B.weight"] = drawn(to, _RANK)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({layer.rpartition(".")[2] for layer in changed})
    described = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder
