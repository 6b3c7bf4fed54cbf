"""The fingerprint of KV. Engines with equal fingerprints may use each other's KV."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from generator.model_files import digest_of_model

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def fingerprint(config: "VllmConfig", layout: str) -> str:
    """A digest of weights, dtype, RoPE, tokenizer, prompt layout and ``layout``, 32 hexadecimal digits.

    Weights and tokenizer enter as ``digest_of_model`` reads them, which says what it does not notice. RoPE and the
    model's dimensions enter with the model's own configuration. ``prompt_layout`` of the ``kv_connector_extra_config``
    binds the keys of documents, which are hashes of their texts, to token ids. A planner whose keys are hashes of token
    ids needs none.
    """
    model = config.model_config
    files = _files(model.model, model.revision)
    facts = {
        "layout": layout,
        "prompt_layout": config.kv_transfer_config.kv_connector_extra_config.get("prompt_layout", ""),
        "dtype": str(model.dtype),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "quantization": str(model.quantization),
        "config": _without_location(model.hf_config.to_dict()),
        "ranks": [config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size],
        "load_format": str(config.load_config.load_format),
        "seed": model.seed if str(config.load_config.load_format) == "dummy" else 0,
        "name": "" if files is not None else model.model,
        "revision": str(model.revision),
        "files": digest_of_model(files) if files is not None else "",
    }
    return blake3(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest(16)


def _without_location(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the path that transformers notes in it, so that copies of a model are equal."""
    return {
        name: _without_location(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if name != "_name_or_path"
    }


def _files(model: str, revision: str | None) -> Path | None:
    """The model's folder or file: the given one, or the one that the Hugging Face client has downloaded, if any."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None
