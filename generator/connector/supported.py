"""What RAGTree's connector supports of vLLM: an allow-list. An engine of anything else starts without the connector.

The connector finds KV by its tokens and copies whole blocks. So a model or an option belongs here only if a block's KV
depends on nothing but the tokens up to its end, and stays in its block while the request runs.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from generator.connector.refusal import UnsupportedByConnector, refusal_passed_on

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
_SET_TO_1 = "set it to 1"
_LEAVE_OUT = "leave it out"
_OWN_DTYPE = "set kv_cache_dtype to the model's own dtype"
_WITHOUT = "run them without it (generator.kv.enabled: false, or vllm serve without --kv-transfer-config)"


class _Option(NamedTuple):
    """An option of vLLM by its place in ``VllmConfig``, its allowed values, and what works instead of another value."""

    place: str
    allowed: tuple[Any, ...]
    instead: str


_OPTIONS = (
    _Option("parallel_config.pipeline_parallel_size", (1,), _SET_TO_1),
    _Option("parallel_config.data_parallel_size", (1,), "set it to 1 and start one instance for each rank"),
    _Option("parallel_config.prefill_context_parallel_size", (1,), _SET_TO_1),
    _Option("parallel_config.decode_context_parallel_size", (1,), _SET_TO_1),
    _Option("parallel_config.enable_elastic_ep", (False,), _LEAVE_OUT),
    _Option("parallel_config.enable_dbo", (False,), _LEAVE_OUT),
    _Option("parallel_config.ubatch_size", (0, 1), _LEAVE_OUT),
    _Option("scheduler_config.scheduler_cls", (None,), _LEAVE_OUT),
    # Without it, vLLM frees the blocks outside of sliding windows, and makes several groups of blocks.
    _Option("scheduler_config.disable_hybrid_kv_cache_manager", (True,), _LEAVE_OUT),
    # Draft layers have their own KV, and rejected tokens leave theirs behind.
    _Option("speculative_config", (None,), _LEAVE_OUT),
    # A diffusion model computes the same tokens' KV several times.
    _Option("diffusion_config", (None,), _LEAVE_OUT),
    # These two replace the weights, or drop the engine's blocks, under KV that the connector still holds.
    _Option("weight_transfer_config", (None,), _LEAVE_OUT),
    _Option("model_config.enable_sleep_mode", (False,), _LEAVE_OUT),
    _Option("model_config.runner_type", ("generate",), "set runner to generate"),
    _Option("kv_transfer_config.kv_role", ("kv_both",), "set it to kv_both"),
    # vLLM's default fails a request whose KV could not be loaded.
    _Option("kv_transfer_config.kv_load_failure_policy", ("recompute",), "set it to recompute"),
)

# What some models have, by their configuration, so that no weights are loaded in vain. ``check_kv_cache`` asks the
# layers themselves.
_UNSUPPORTED_MODELS: dict[str, Callable[[Any], Any]] = {
    "an encoder and a decoder": lambda model: model.is_encoder_decoder,
    "no attention": lambda model: model.is_attention_free,
    "state layers such as Mamba's": lambda model: model.is_hybrid,
    "chunked local attention": lambda model: model.attention_chunk_size,
    "layers that share other layers' KV": lambda model: getattr(model.hf_text_config, "num_kv_shared_layers", 0),
}


def check(config: "VllmConfig", kv_cache: "KVCacheConfig") -> None:
    """Check everything, in the engine's process. Raises UnsupportedByConnector."""
    with refusal_passed_on(config):
        check_config(config)
        check_kv_cache(kv_cache)


def check_config(config: "VllmConfig") -> None:
    """Check what is known before the engine starts. Raises UnsupportedByConnector."""
    for option in _OPTIONS:
        value = attrgetter(option.place)(config)
        if value not in option.allowed:
            name = option.place.rpartition(".")[2]
            shown = f"{name}={value}" if isinstance(value, int | str) else name
            raise _refusal(f"vLLM's {shown}", option.instead)
    model = config.model_config
    for trait, is_found in _UNSUPPORTED_MODELS.items():
        if is_found(model):
            raise _refusal(f"models with {trait}", _WITHOUT)
    if config.cache_config.sliding_window is not None:
        raise _sliding_window(config.cache_config.sliding_window)
    if model.use_mla and not config.scheduler_config.enable_chunked_prefill:
        # vLLM's reference kernels attend to no token of an earlier step.
        raise _refusal("multi-head latent attention (MLA) on a CPU without AMX", _WITHOUT)
    # Scales that a first prompt decides differ from start to start. vLLM 0.32 has no such option any more.
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise _refusal("vLLM's calculate_kv_scales", _LEAVE_OUT)
    cache_dtype = str(config.cache_config.cache_dtype)
    if cache_dtype not in ("auto", str(model.dtype).removeprefix("torch."), *(_FP8 if not model.use_mla else ())):
        raise _refusal(f"vLLM's kv_cache_dtype={cache_dtype}", _OWN_DTYPE)


def check_kv_cache(kv_cache: "KVCacheConfig") -> None:
    """Check what vLLM keeps for each layer of the loaded model. Raises UnsupportedByConnector."""
    if len(kv_cache.kv_cache_groups) != 1:
        raise _refusal("models whose layers keep different kinds of KV", _WITHOUT)
    specs = _layer_specs(kv_cache.kv_cache_groups[0].kv_cache_spec)
    for spec in specs:
        if type(spec) is SlidingWindowSpec:
            raise _sliding_window(spec.sliding_window)
        unsupported = _unsupported_attention(spec)
        if unsupported:
            raise _refusal(f"models with {unsupported}", _WITHOUT)
        if not (_is_fp8(spec) or (spec.dtype in _DTYPES and spec.kv_quant_mode is KVQuantMode.NONE)):
            raise _refusal("quantised KV", _OWN_DTYPE)
    if len({spec.dtype for spec in specs}) > 1:
        raise _refusal("layers with KV in different dtypes", _OWN_DTYPE)


def _layer_specs(group: "KVCacheSpec") -> "list[KVCacheSpec]":
    """What vLLM keeps for each layer of a group, or once for all layers. vLLM 0.26 has no function for that."""
    return list(group.kv_cache_specs.values()) if isinstance(group, UniformTypeKVCacheSpecs) else [group]


def _unsupported_attention(spec: "KVCacheSpec") -> str | None:
    """What is not supported about a layer's attention, or None.

    A sliding window is supported in a model that also has layers without one: vLLM then keeps all tokens' KV.
    """
    # Other subclasses are other kinds of attention.
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
        return f"attention of vLLM's kind {type(spec).__name__}"
    if type(spec) is MLAAttentionSpec and (spec.dtype not in _DTYPES or _has_indexer(spec)):
        return "sparse or quantised multi-head latent attention"
    if spec.attention_chunk_size is not None:
        return "chunked local attention"
    if spec.non_causal:
        return "non-causal attention"
    # vLLM 0.26 has no such states.
    if getattr(spec, "tokens_per_state", 1) != 1:
        return "KV states of several tokens"
    return None


def is_latent(kv_cache: "KVCacheConfig") -> bool:
    """Whether the layers keep latent vectors (MLA), and not keys and values."""
    return any(type(spec) is MLAAttentionSpec for spec in _layer_specs(kv_cache.kv_cache_groups[0].kv_cache_spec))


def is_quantised(kv_cache: "KVCacheConfig") -> bool:
    """Whether the layers keep keys and values in FP8."""
    return any(map(_is_fp8, _layer_specs(kv_cache.kv_cache_groups[0].kv_cache_spec)))


def _is_fp8(spec: "KVCacheSpec") -> bool:
    """Whether a layer keeps FP8 with one scale for all tokens, which belongs to the weights."""
    return bool(spec.kv_quant_mode is KVQuantMode.FP8_PER_TENSOR and spec.dtype is torch.uint8)


def _has_indexer(spec: "KVCacheSpec") -> bool:
    """Whether a layer also keeps what decides which tokens it attends to. vLLM 0.26 has none of these fields."""
    return bool(getattr(spec, "model_version", None) or getattr(spec, "is_index_group_leader", False))


def _sliding_window(tokens: int) -> UnsupportedByConnector:
    """The refusal of a model whose blocks outside of the window vLLM frees and uses again."""
    return _refusal(
        f"models whose layers all have a sliding window (here {tokens} tokens)",
        f"set disable_sliding_window to true and max_model_len to at most {tokens}",
    )


def _refusal(what: str, instead: str) -> UnsupportedByConnector:
    return UnsupportedByConnector(f"RAGTree's connector does not support {what}: {instead}", param="generator")
