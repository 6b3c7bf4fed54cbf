"""The fingerprint of KV. Engines with equal fingerprints may use each other's KV."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from packaging.version import Version

from generator.model_files import digest_of_model

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

KV_SEMANTICS = 1
"""The version of what RAGTree's KV means. Raise it when that changes and nothing else in the fingerprint does.

So after a fault of ours that wrote wrong KV, or a change of where in a page a token's KV is, or of how documents are
composed and then kept: KV on disk, in host memory and at peers is then never used again.
"""

_SAME_KV: dict[str, str] = {}
"""Releases of vLLM that compute the same KV as an older one, which stands for both.

Any two others share no KV: a release may mend what a model computed wrongly, such as its RoPE, and says so nowhere. Add
one once ``ragtree doctor`` finds exact answers to KV that the older release has written, on the models that are served.
"""


def fingerprint(config: "VllmConfig", layout: str) -> str:
    """A digest of weights, dtype, RoPE, tokenizer, prompt layout, ``layout``, and who computes: 32 hexadecimal digits.

    Who computes is ``KV_SEMANTICS`` and the release of vLLM. Versions of torch and of kernels are left out: they round
    in other ways, as other devices do, which changes no token's meaning.

    A draft model's layers keep KV in the same pages, so its weights and its configuration enter, too.

    Weights and tokenizer enter as ``digest_of_model`` reads them, which says what it does not notice. RoPE and the
    model's dimensions enter with the model's own configuration. ``prompt_layout`` of the ``kv_connector_extra_config``
    binds the keys of documents, which are hashes of their texts, to token ids. A planner whose keys are hashes of token
    ids needs none.
    """
    model = config.model_config
    facts = {
        "semantics": KV_SEMANTICS,
        "vllm": _release(_installed()),
        "layout": layout,
        "prompt_layout": config.kv_transfer_config.kv_connector_extra_config.get("prompt_layout", ""),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "ranks": [config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size],
        "load_format": str(config.load_config.load_format),
        "seed": model.seed if str(config.load_config.load_format) == "dummy" else 0,
        **_facts_of(model),
    }
    drafts = config.speculative_config
    if drafts is not None and drafts.method == "draft_model":
        facts["draft"] = _facts_of(drafts.draft_model_config)
    return blake3(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest(16)


def _facts_of(model: "ModelConfig") -> dict[str, Any]:
    """What decides the KV that a model computes."""
    files = _files(model.model, model.revision)
    return {
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "config": _without_location(model.hf_config.to_dict()),
        "name": "" if files is not None else model.model,
        "revision": str(model.revision),
        "files": digest_of_model(files) if files is not None else "",
    }


def _installed() -> str:
    # Not the version of the package, whose name depends on the device.
    from vllm.version import __version__

    return str(__version__)


def _release(installed: str) -> str:
    """The release of vLLM that stands for the installed one. A release's builds for several devices are one."""
    parsed = Version(installed)
    # Two builds between releases have nothing but their local part to tell them apart.
    release = installed if parsed.is_devrelease else parsed.public
    return _SAME_KV.get(release, release)


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
