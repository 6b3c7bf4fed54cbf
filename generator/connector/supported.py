"""What RAGTree's connector supports of vLLM: an allow-list. An engine of anything else starts without the connector.

The connector finds KV by its tokens and copies whole blocks. So a model or an option belongs here only if a block's KV
depends on nothing but the tokens up to its end, and stays in its block as long as a later token attends to it; a state
depends on all tokens before, and is copied before the next step overwrites it.
"""

from collections.abc import Callable
from math import gcd
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from generator.connector.refusal import UnsupportedByConnector, refusal_passed_on
from generator.connector.scheduler import node_end_scheduler
from protocol.kv import PageGroup, Paging

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
_DRAFTS = ("ngram", "ngram_gpu", "suffix")
"""Ways to draft tokens without layers of their own. Rejected tokens are behind the prompt, and so behind all nodes."""
_DRAFT_MODEL = "draft_model"
"""A whole model that drafts. Its layers keep KV in the same blocks, which depends on tokens alone, too."""
_SET_TO_1 = "set it to 1"
_LEAVE_OUT = "leave it out"
_OWN_DTYPE = "set kv_cache_dtype to the model's own dtype"
_WITHOUT = "run them without it (generator.kv.enabled: false, or vllm serve without --kv-transfer-config)"

SERVES_GROUPS = hasattr(KVConnectorBase_V1, "get_transfer_results")
"""Whether vLLM lets a connector fail a whole load, which it has to with windows. In vLLM 0.26, it counts what is valid
before the first block that failed, and blocks before a window are none.
"""


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
    _Option("scheduler_config.scheduler_cls", (None, *node_end_scheduler.NAMES), _LEAVE_OUT),
    # Without it, vLLM frees the blocks outside of sliding windows, and makes several groups of blocks.
    *(() if SERVES_GROUPS else (_Option("scheduler_config.disable_hybrid_kv_cache_manager", (True,), _LEAVE_OUT),)),
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
    if config.model_config.is_hybrid:
        _check_states(config)
    drafts = config.speculative_config
    if drafts is not None and drafts.method not in (*_DRAFTS, *((_DRAFT_MODEL,) if SERVES_GROUPS else ())):
        known = "ngram, suffix or draft_model" if SERVES_GROUPS else "ngram or suffix"
        raise _refusal(f"speculative decoding by {drafts.method}", f"use the method {known}, or leave it out")
    model = config.model_config
    if drafts is not None and drafts.method == _DRAFT_MODEL:
        shorter = drafts.draft_model_config.max_model_len
        if shorter < model.max_model_len:
            # vLLM drafts nothing in steps with a longer request, and documents would be kept without the draft's KV.
            raise _refusal(f"a draft model for up to {shorter} tokens", f"set max_model_len to at most {shorter}")
    for trait, is_found in _UNSUPPORTED_MODELS.items():
        if is_found(model):
            raise _refusal(f"models with {trait}", _WITHOUT)
    if config.cache_config.sliding_window is not None and not SERVES_GROUPS:
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


def _check_states(config: "VllmConfig") -> None:
    """Check an engine whose model has layers with states beside attention."""
    states = "models with state layers such as Mamba's"
    if not SERVES_GROUPS:
        raise _refusal(f"{states} in this release of vLLM", _WITHOUT)
    scheduling = config.scheduler_config
    scheduler = node_end_scheduler.NAMES[bool(scheduling.async_scheduling)]
    if scheduling.scheduler_cls != scheduler:
        named = scheduling.scheduler_cls or "vLLM's own scheduler"
        steps = "with" if scheduling.async_scheduling else "without"
        raise _refusal(f"{states} with {named}", f"set scheduler_cls to {scheduler} {steps} async_scheduling")
    mode = config.cache_config.mamba_cache_mode
    if mode != "align":
        raise _refusal(f"{states} with mamba_cache_mode={mode}", "set it to align, and enable_prefix_caching to true")
    if config.cache_config.prefix_match_unit is not None:
        raise _refusal(f"{states} with prefix_match_unit", _LEAVE_OUT)
    if config.speculative_config is not None:
        # A rejected token has changed the state.
        raise _refusal(f"{states} with speculative decoding", _LEAVE_OUT)


def check_kv_cache(kv_cache: "KVCacheConfig") -> None:
    """Check what vLLM keeps for each layer of the loaded model. Raises UnsupportedByConnector."""
    groups = kv_cache.kv_cache_groups
    if not groups or (len(groups) > 1 and not SERVES_GROUPS):
        raise _refusal("models whose layers keep different kinds of KV", _WITHOUT)
    layers = _specs(kv_cache)
    specs = [spec for spec in layers if type(spec) is not MambaSpec]
    sizes = {group.kv_cache_spec.block_size for group in groups}
    if len(specs) < len(layers) and (len(sizes) > 1 or not specs):
        # vLLM then finds states within blocks.
        raise _refusal("states in blocks of other lengths than those of attention, or without attention", _WITHOUT)
    for spec in specs:
        if _window(spec) and not SERVES_GROUPS:
            raise _sliding_window(_window(spec))
        unsupported = _unsupported_attention(spec)
        if unsupported:
            raise _refusal(f"models with {unsupported}", _WITHOUT)
        if not (_is_fp8(spec) or (spec.dtype in _DTYPES and spec.kv_quant_mode is KVQuantMode.NONE)):
            raise _refusal("quantised KV", _OWN_DTYPE)
    if len({spec.dtype for spec in specs}) > 1:
        raise _refusal("layers with KV in different dtypes", _OWN_DTYPE)
    kinds = [
        {(type(spec) is MambaSpec, _window(spec)) for spec in _layer_specs(group.kv_cache_spec)} for group in groups
    ]
    if any(len(kind) > 1 for kind in kinds):
        raise _refusal("layers of different windows in one group", _WITHOUT)


def paging_of(kv_cache: "KVCacheConfig") -> Paging:
    """How the KV of a supported model is cut into pages: a page is a block of one of vLLM's groups of layers."""
    specs = [group.kv_cache_spec for group in kv_cache.kv_cache_groups]
    unit = gcd(*(spec.block_size for spec in specs))
    return Paging(unit, tuple(_page_group(spec, unit) for spec in specs))


def _page_group(group: "KVCacheSpec", unit: int) -> PageGroup:
    layer, times = _layer_specs(group)[0], group.block_size // unit
    if type(layer) is MambaSpec:
        return PageGroup(1, times, states=True)
    return PageGroup(_window(layer), times, type(layer) is ChunkedLocalAttentionSpec)


def _window(spec: "KVCacheSpec") -> int:
    """How many tokens a layer attends to, or a chunk has; 0 for all."""
    if type(spec) is SlidingWindowSpec:
        return int(spec.sliding_window)
    return int(spec.attention_chunk_size) if type(spec) is ChunkedLocalAttentionSpec else 0


def _layer_specs(group: "KVCacheSpec") -> "list[KVCacheSpec]":
    """What vLLM keeps for each layer of a group, or once for all layers. vLLM 0.26 has no function for that."""
    return list(group.kv_cache_specs.values()) if isinstance(group, UniformTypeKVCacheSpecs) else [group]


def _unsupported_attention(spec: "KVCacheSpec") -> str | None:
    """What is not supported about a layer's attention, or None.

    Without its manager of several kinds of KV, vLLM keeps all tokens' KV of a layer with a sliding window, and of one
    that attends to chunks (``attention_chunk_size``).
    """
    # Other subclasses are other kinds of attention.
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec):
        return f"attention of vLLM's kind {type(spec).__name__}"
    if getattr(spec, "extra_retained_tokens", 0):
        return "tokens kept beyond a sliding window"
    if type(spec) is MLAAttentionSpec and (spec.dtype not in _DTYPES or _has_indexer(spec)):
        return "sparse or quantised multi-head latent attention"
    if getattr(spec, "non_causal", False):
        return "non-causal attention"
    # vLLM 0.26 has no such states.
    if getattr(spec, "tokens_per_state", 1) != 1:
        return "KV states of several tokens"
    return None


def is_latent(kv_cache: "KVCacheConfig") -> bool:
    """Whether the layers keep latent vectors (MLA), and not keys and values."""
    return any(type(spec) is MLAAttentionSpec for spec in _specs(kv_cache))


def is_quantised(kv_cache: "KVCacheConfig") -> bool:
    """Whether the layers keep keys and values in FP8."""
    return any(_is_fp8(spec) for spec in _specs(kv_cache))


def _specs(kv_cache: "KVCacheConfig") -> "list[KVCacheSpec]":
    """What vLLM keeps for each layer, or once for like layers."""
    return [spec for group in kv_cache.kv_cache_groups for spec in _layer_specs(group.kv_cache_spec)]


def _is_fp8(spec: "KVCacheSpec") -> bool:
    """Whether a layer keeps FP8 with one scale for all tokens, which belongs to the weights."""
    return bool(getattr(spec, "kv_quant_mode", None) is KVQuantMode.FP8_PER_TENSOR and spec.dtype is torch.uint8)


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
