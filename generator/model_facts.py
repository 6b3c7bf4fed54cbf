"""What decides how much memory a model takes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_VALUE_BYTES = {"float32": 4}
_WEIGHTS = "*.safetensors"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model's size and shape. ``context`` is its longest prompt and answer in tokens.

    ``name`` is what ``ragtree up --model`` takes. ``licence`` is empty if it is unknown.
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    context: int
    licence: str = ""

    def weight_bytes(self, value_bytes: int) -> int:
        """Bytes of the weights in a dtype of ``value_bytes`` bytes."""
        return self.parameters * value_bytes

    def kv_bytes(self, value_bytes: int) -> int:
        """Bytes of one token's KV in a dtype of ``value_bytes`` bytes: a key and a value a layer and head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * value_bytes


def facts_of_folder(folder: Path, name: str) -> ModelFacts | None:
    """Return the facts of a model folder; None if its configuration is not that of a plain decoder.

    Parameters are counted by the size of the weights on disk.
    """
    try:
        config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return ModelFacts(
            name=name,
            parameters=sum(file.stat().st_size for file in folder.glob(_WEIGHTS)) // _stored_bytes(config),
            layers=config["num_hidden_layers"],
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            context=config["max_position_embeddings"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stored_bytes(config: Mapping[str, Any]) -> int:
    return _VALUE_BYTES.get(config.get("dtype") or config.get("torch_dtype") or "", 2)
