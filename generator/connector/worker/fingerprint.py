"""The fingerprint of KV. Engines with equal fingerprints may use each other's KV."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SAMPLES = 64
_SAMPLE_BYTES = 1 << 18


def fingerprint(config: "VllmConfig", layout: str) -> str:
    """A digest of weights, dtype, RoPE, tokenizer and ``layout``, 32 hexadecimal digits.

    Weights enter as file names, sizes, and samples spread over each file: hashing a large model in full would take
    longer than loading it. RoPE and the model's dimensions enter with the model's own configuration.
    """
    digest = blake3()
    model = config.model_config
    folder = _folder(model.model, model.revision)
    facts = {
        "layout": layout,
        "dtype": str(model.dtype),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "quantization": str(model.quantization),
        "config": model.hf_config.to_dict(),
        "ranks": [config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size],
        "load_format": str(config.load_config.load_format),
        "seed": model.seed if str(config.load_config.load_format) == "dummy" else 0,
        "name": "" if folder is not None else model.model,
        "revision": str(model.revision),
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    if folder is not None:
        for file in sorted(folder.iterdir()):
            if file.suffix in (".safetensors", ".bin", ".gguf", ".json", ".model", ".txt"):
                _add(digest, file)
    return digest.hexdigest(16)


def _folder(model: str, revision: str | None) -> Path | None:
    """The model's folder: the given one, or the one the Hugging Face client has downloaded. None without either."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None


def _add(digest: blake3, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name}:{size}:".encode())
    with file.open("rb") as content:
        # Small files are read as a whole.
        for begin in sorted({size * number // _SAMPLES for number in range(_SAMPLES)}):
            content.seek(begin)
            digest.update(content.read(_SAMPLE_BYTES))
