"""The fingerprint of KV: what two engines must agree in before one may use what the other has computed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SAMPLE_BYTES = 1 << 20


def fingerprint(config: "VllmConfig", layout: str) -> str:
    """A digest of weights, dtype, RoPE, tokenizer and ``layout``, 32 hexadecimal digits.

    Weights are told by their files' names, sizes, beginnings and ends: reading all of a large model would take longer
    than loading it. RoPE is part of the model's own configuration, as are all of its dimensions.
    """
    digest = blake3()
    model = config.model_config
    facts = {
        "layout": layout,
        "dtype": str(model.dtype),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "quantization": str(model.quantization),
        "config": model.hf_config.to_dict(),
        "ranks": [config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size],
        "load_format": str(config.load_config.load_format),
        "seed": model.seed if str(config.load_config.load_format) == "dummy" else 0,
        "name": model.model if not Path(model.model).is_dir() else "",
        "revision": str(model.revision),
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    folder = Path(model.model)
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.suffix in (".safetensors", ".bin", ".gguf", ".json", ".model", ".txt"):
                _add(digest, file)
    return digest.hexdigest(16)


def _add(digest: blake3, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name}:{size}:".encode())
    with file.open("rb") as content:
        digest.update(content.read(_SAMPLE_BYTES))
        if size > _SAMPLE_BYTES:
            content.seek(max(_SAMPLE_BYTES, size - _SAMPLE_BYTES))
            digest.update(content.read(_SAMPLE_BYTES))
