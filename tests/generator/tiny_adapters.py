"""LoRA adapters with random weights for the tiny llama, and the models that they make of it."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK = 4
_ALPHA = 8
_CHANGED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj")


def make_adapter(folder: Path, model: Path, seed: int, rank: int = RANK) -> Path:
    """An adapter of every layer of a model, in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer, weights in _layers(model).items():
        up, down = weights.shape
        tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(rank, down, generator=numbers) * 0.2
        tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(up, rank, generator=numbers) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({name.rpartition(".")[2] for name in _CHANGED})
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": _ALPHA, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def merged(folder: Path, model: Path, adapter: Path) -> Path:
    """A model whose own weights are what the adapter makes of another one's."""
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(model / "model.safetensors")
    changes = load_file(adapter / "adapter_model.safetensors")
    for layer in _layers(model):
        down, up = (changes[f"base_model.model.{layer}.lora_{side}.weight"] for side in "AB")
        weights[f"{layer}.weight"] += up @ down * (_ALPHA / len(down))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _layers(model: Path) -> dict[str, torch.Tensor]:
    """The layers that the adapters change, with the model's weights."""
    weights = load_file(model / "model.safetensors")
    return {
        name.removesuffix(".weight"): tensor
        for name, tensor in sorted(weights.items())
        if name.removesuffix(".weight").endswith(_CHANGED)
    }
