"""A model's size and shape, by its configuration file: what its layers keep of a prompt."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_WEIGHTS = "*.safetensors"
_STORED_BYTES = {"float32": 4}
_FULL = {"full_attention", "attention", "global"}
_WINDOWS = {"sliding_attention", "chunked_attention", "local"}
_STATES = {"linear_attention", "mamba", "conv", "recurrent"}
_HYBRIDS = ("mamba", "ssm_", "linear_attn", "attn_layer_", "attention_chunk_size")
"""In the names of options that only models have whose layers differ."""
_WINDOWS_ALONE = {"mistral", "starcoder2", "phi3"}
"""Models of which all layers have the window that the configuration names."""
_NEMOTRON = {"*": "attention", "M": "mamba"}
"""The layers of a ``hybrid_override_pattern`` that keep anything."""


class ModelFacts(msgspec.Struct, frozen=True):
    """A model's size and shape. ``context`` is its longest prompt and answer in tokens.

    ``name`` is what ``ragtree up --model`` takes. ``licence`` is empty if it is unknown. Of its layers, ``layers`` keep
    KV of all tokens: keys and values, or ``latent`` numbers a token (MLA) if that is set. ``windowed_layers`` keep
    those of the last ``window`` tokens. ``state_layers`` keep a state of ``state_values`` numbers in all of them
    together; 0 if that is unknown. ``stored_bytes`` are those of weights that are quantised on disk: a dtype does not
    change them.
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    context: int
    licence: str = ""
    windowed_layers: int = 0
    window: int = 0
    latent: int = 0
    state_layers: int = 0
    state_values: int = 0
    stored_bytes: int = 0

    def weight_bytes(self, value_bytes: int) -> int:
        """Bytes of the weights in a dtype of ``value_bytes`` bytes."""
        return self.stored_bytes or self.parameters * value_bytes

    def kv_bytes(self, value_bytes: int) -> int:
        """Bytes of one more token's KV in a dtype of ``value_bytes`` bytes, without windows and states."""
        return self.layers * self._numbers * value_bytes

    def state_bytes(self, value_bytes: int) -> int:
        """Bytes of the states after a prompt in a dtype of ``value_bytes`` bytes."""
        return self.state_values * value_bytes

    def prompt_bytes(self, tokens: int, value_bytes: int) -> int:
        """Bytes of what is kept of a prompt, with the states at its end."""
        windows = self.windowed_layers * self._numbers * min(tokens, self.window)
        return self.kv_bytes(value_bytes) * tokens + (windows + self.state_values) * value_bytes

    @property
    def keeps(self) -> str:
        """What its layers keep, in words."""
        kinds = {
            "KV of all tokens": self.layers if not self.latent else 0,
            "latent vectors of all tokens": self.layers if self.latent else 0,
            f"KV of the last {self.window:,} tokens": self.windowed_layers,
            "a state": self.state_layers,
        }
        return ", ".join(
            f"{kind} in {layers} {'layers' if layers > 1 else 'layer'}" for kind, layers in kinds.items() if layers
        )

    @property
    def composable(self) -> bool:
        """Whether a document's KV can serve at any position. Otherwise it serves after the same documents only."""
        return not (self.latent or self.windowed_layers or self.state_layers)

    @property
    def _numbers(self) -> int:
        """Numbers of one token in one layer with attention."""
        return self.latent or 2 * self.kv_heads * self.head_dim


def facts_of_folder(folder: Path, name: str) -> ModelFacts | None:
    """Return the facts of a model folder; None if its configuration says too little, or it has no safetensors.

    Parameters are counted by the size of the weights on disk.
    """
    try:
        whole: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # Of a model that also takes images, that of its language model.
        config: Mapping[str, Any] = {**whole, **whole.get("text_config", {})}
        heads = config["num_attention_heads"]
        stored = sum(file.stat().st_size for file in folder.glob(_WEIGHTS))
        kinds = Counter(map(_kind, _layers(config)))
        facts = ModelFacts(
            name=name,
            parameters=stored // _STORED_BYTES.get(config.get("dtype") or config.get("torch_dtype") or "", 2),
            layers=kinds["full"],
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            context=config["max_position_embeddings"],
            windowed_layers=kinds["window"],
            window=(config.get("sliding_window") or config.get("attention_chunk_size") or 0) if kinds["window"] else 0,
            latent=config["kv_lora_rank"] + config["qk_rope_head_dim"] if config.get("kv_lora_rank") else 0,
            state_layers=kinds["state"],
            state_values=kinds["state"] * _state_values(config) if kinds["state"] else 0,
            stored_bytes=stored if whole.get("quantization_config") else 0,
        )
        # Configurations of one model have a list where those of another have a number.
        return msgspec.convert(msgspec.structs.asdict(facts), ModelFacts) if stored else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        return None


def _layers(config: Mapping[str, Any]) -> Sequence[str]:
    """The kinds of a model's layers, as its configuration names them. Raises ValueError if it does not tell."""
    count: int = config["num_hidden_layers"]
    named = config.get("layer_types") or config.get("layers_block_type")
    if named:
        return list(named)
    if pattern := config.get("hybrid_override_pattern"):
        return [_NEMOTRON[layer] for layer in pattern if layer in _NEMOTRON]
    if interval := config.get("full_attention_interval"):
        return ["attention" if number % interval == 0 else "linear_attention" for number in range(1, count + 1)]
    if any(hint in key for key in config for hint in _HYBRIDS):
        raise ValueError("its layers differ, and are not listed")
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if windowed and (every := config.get("sliding_window_pattern")):
        return ["attention" if number % every == 0 else "sliding_attention" for number in range(1, count + 1)]
    if windowed and config.get("model_type") not in _WINDOWS_ALONE:
        raise ValueError("its layers may differ, and are not listed")
    return ["sliding_attention" if windowed else "attention"] * count


def _kind(layer: str) -> str:
    for kind, names in (("full", _FULL), ("window", _WINDOWS), ("state", _STATES)):
        if layer in names:
            return kind
    raise ValueError(f"a layer of an unknown kind: {layer}")


def _state_values(config: Mapping[str, Any]) -> int:
    """Numbers of one layer's state; 0 if its kind is unknown."""
    if "linear_num_value_heads" in config:
        # A gated delta net, as Qwen3-Next has them.
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        convolution = (2 * keys + values) * (config["linear_conv_kernel_dim"] - 1)
        return int(convolution + values * config["linear_key_head_dim"])
    if "conv_L_cache" in config:
        return int(config["hidden_size"] * (config["conv_L_cache"] - 1))
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads")
    if heads:
        # Mamba 2, by the names of Granite and of Nemotron.
        size = config.get("mamba_d_state") or config["ssm_state_size"]
        inner = heads * (config.get("mamba_d_head") or config["mamba_head_dim"])
        groups = config.get("mamba_n_groups") or config["n_groups"]
        width = config.get("mamba_d_conv") or config["conv_kernel"]
        return int((inner + 2 * groups * size) * (width - 1) + inner * size)
    return 0
