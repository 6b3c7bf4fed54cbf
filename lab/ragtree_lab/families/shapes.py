"""Shapes of small models, one for each family of models whose layers keep something else.

A shape is what the ``config.json`` of a model's folder has.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Shape = Mapping[str, Any]

_SLIDING, _FULL = "sliding_attention", "full_attention"
_WINDOW = 128
_SIZES: Shape = MappingProxyType(
    {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        # Tied embeddings would make a random model repeat its last token.
        "tie_word_embeddings": False,
    }
)
_EXPERTS: Shape = MappingProxyType({"num_local_experts": 4, "num_experts_per_tok": 2})

RANKS = 8
"""The most tensor-parallel ranks that can share ``SHARED``."""

SHARED: Shape = {**_SIZES, "model_type": "llama", "num_key_value_heads": RANKS}
"""A Llama whose heads ranks can share."""


class Family(NamedTuple):
    """A family's ``shape``, the ``dtype`` that its kernels compute in on a CPU, and vLLM's ``engine_args`` for it.

    So many ``adapters`` take turns with the model.
    """

    shape: Shape
    dtype: str = "float32"
    engine_args: Mapping[str, Any] = MappingProxyType({})
    adapters: int = 0


FAMILIES: Mapping[str, Family] = {
    "llama": Family({**_SIZES, "model_type": "llama"}),
    "llama in fp8": Family({**_SIZES, "model_type": "llama"}, "bfloat16", {"kv_cache_dtype": "fp8"}),
    "llama with adapters": Family({**_SIZES, "model_type": "llama"}, adapters=2),
    "llama with drafts": Family(
        {**_SIZES, "model_type": "llama"},
        engine_args={"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    ),
    "mistral": Family({**_SIZES, "model_type": "mistral", "sliding_window": _WINDOW}),
    "gemma3": Family(
        {
            **_SIZES,
            "model_type": "gemma3_text",
            "sliding_window": _WINDOW,
            "layer_types": [*[_SLIDING] * 3, _FULL],
            "query_pre_attn_scalar": 32,
        }
    ),
    "gemma4": Family(
        {
            **_SIZES,
            "model_type": "gemma4_text",
            "sliding_window": _WINDOW,
            "layer_types": [*[_SLIDING] * 3, _FULL],
            "global_head_dim": 64,
            "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": 0,
        }
    ),
    "gpt-oss": Family(
        {**_SIZES, **_EXPERTS, "model_type": "gpt_oss", "sliding_window": _WINDOW, "layer_types": [_SLIDING, _FULL] * 2}
    ),
    "llama4": Family(
        {
            **_SIZES,
            **_EXPERTS,
            "num_experts_per_tok": 1,
            "model_type": "llama4_text",
            "attention_chunk_size": _WINDOW,
            "intermediate_size_mlp": 512,
            "layer_types": [*["chunked_attention"] * 3, _FULL],
        }
    ),
    "deepseek": Family(
        {
            **_SIZES,
            "model_type": "deepseek_v2",
            "num_key_value_heads": 8,
            "head_dim": 64,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            # All layers are dense.
            "first_k_dense_replace": 4,
            "n_routed_experts": 4,
            "moe_intermediate_size": 64,
        },
        "bfloat16",
    ),
    "qwen3-next": Family(
        {
            **_SIZES,
            "model_type": "qwen3_next",
            "layer_types": [*["linear_attention"] * 3, _FULL],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
        "bfloat16",
    ),
    "lfm2": Family(
        {
            **_SIZES,
            "model_type": "lfm2",
            "layer_types": ["conv", "conv", _FULL, "conv"],
            "conv_L_cache": 3,
            "conv_dim": 256,
            "conv_dim_out": 256,
            "conv_bias": False,
            "block_dim": 256,
            "block_multiple_of": 64,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-5,
        },
        "bfloat16",
    ),
}
"""By name."""
