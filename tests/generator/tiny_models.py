"""Models of a few small layers with random weights, of the kinds that a KV connector has to tell apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from model_folders import make_model_folder
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    DeepseekV2Config,
    Gemma4TextConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3NextConfig,
)

WINDOW = 64
"""Tokens of the sliding windows."""

SLIDING, FULL = "sliding_attention", "full_attention"
_SIZES = {
    # Every token id that the tests draw is below.
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Tied embeddings would make a random model repeat its last token.
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


class Continuation(NamedTuple):
    """A greedy continuation: its tokens, and the natural logarithms of their probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def llama() -> LlamaConfig:
    """Full attention in all layers, with heads that two ranks can share."""
    return LlamaConfig(**_SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}, num_hidden_layers=2)


def mistral(window: int = WINDOW) -> MistralConfig:
    """A sliding window in all layers, like Mistral-7B-v0.1."""
    return MistralConfig(**_SIZES, num_hidden_layers=2, sliding_window=window)


def gemma4() -> Gemma4TextConfig:
    """Sliding windows in half of the layers. The other layers have larger heads."""
    return Gemma4TextConfig(
        **_SIZES,
        num_hidden_layers=4,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        sliding_window=WINDOW,
        global_head_dim=64,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=_SIZES["vocab_size"],
    )


def gemma4_shared() -> Gemma4TextConfig:
    """As ``gemma4``, but the last two layers read the KV of the two in front of them, as in Gemma 4 E2B."""
    return Gemma4TextConfig(**gemma4().to_dict() | {"num_kv_shared_layers": 2})


def llama4() -> Llama4TextConfig:
    """Attention to chunks in half of the layers."""
    return Llama4TextConfig(
        **_SIZES,
        num_local_experts=4,
        num_experts_per_tok=1,
        num_hidden_layers=4,
        layer_types=["chunked_attention", FULL] * 2,
        no_rope_layers=[1, 0, 1, 0],
        attention_chunk_size=WINDOW,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=128,
        attn_temperature_tuning=False,
    )


def gpt_oss() -> GptOssConfig:
    """Sliding windows in half of the layers, attention sinks, and experts."""
    return GptOssConfig(**_SIZES, **_EXPERTS, num_hidden_layers=2, layer_types=[SLIDING, FULL], sliding_window=WINDOW)


def hidden_window() -> GptOssConfig:
    """One layer, to which vLLM gives a sliding window, although the configuration says nothing of it."""
    return GptOssConfig(**_SIZES, **_EXPERTS, num_hidden_layers=1, layer_types=[FULL], sliding_window=WINDOW)


def deepseek() -> DeepseekV2Config:
    """Multi-head latent attention (MLA)."""
    return DeepseekV2Config(
        **_SIZES | {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64},
        num_hidden_layers=2,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        # All layers are dense.
        first_k_dense_replace=2,
        n_routed_experts=4,
        moe_intermediate_size=64,
    )


def qwen3_next() -> Qwen3NextConfig:
    """Gated delta nets, which keep a state, in three of four layers."""
    return Qwen3NextConfig(
        **_SIZES,
        num_hidden_layers=4,
        layer_types=["linear_attention"] * 3 + [FULL],
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )


def lfm2() -> Lfm2Config:
    """Short convolutions, which keep a state, in three of four layers."""
    return Lfm2Config(
        **_SIZES,
        num_hidden_layers=4,
        layer_types=["conv", "conv", FULL, "conv"],
        conv_L_cache=3,
        conv_dim=64,
        conv_dim_out=64,
        conv_bias=False,
        block_dim=64,
        block_multiple_of=64,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        norm_eps=1e-5,
    )


def make_config_folder(folder: Path, config: PretrainedConfig) -> Path:
    """A folder with a model's configuration and a tokenizer, but no weights."""
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    config.save_pretrained(make_model_folder(folder))
    return folder


def make_tiny_model(folder: Path, config: PretrainedConfig) -> Path:
    """A folder with a whole model. Its weights are large enough that its answers depend on all of a prompt."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.15)
    model.save_pretrained(make_model_folder(folder))
    return folder


def continuation(
    folder: Path,
    prompt: list[int],
    tokens: int,
    mask: torch.Tensor | None = None,
    positions: Sequence[int] | None = None,
) -> Continuation:
    """What the model answers in float32, computed from the whole prompt for each token, and without vLLM.

    Row v of a ``mask`` says to which tokens of the prompt its token v attends. What it generates attends to everything.
    The prompt's tokens have these ``positions``, by default their places.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    token_ids: list[int] = []
    logprobs: list[float] = []
    with torch.no_grad():
        for _ in range(tokens):
            ids = torch.tensor([[*prompt, *token_ids]])
            if mask is None:
                seen = model(ids, use_cache=False)
            else:
                seen = model(ids, **_attending(ids.shape[1], mask, positions), use_cache=False)
            logits = seen.logits[0, -1]
            token_ids.append(int(logits.argmax()))
            logprobs.append(float(logits.log_softmax(-1)[token_ids[-1]]))
    return Continuation(tuple(token_ids), tuple(logprobs))


def _attending(tokens: int, mask: torch.Tensor, positions: Sequence[int] | None) -> dict[str, torch.Tensor]:
    """What transformers needs to know about a prompt's mask and positions, with the tokens that were generated."""
    attends = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    attends[: len(mask), : len(mask)] = mask
    at = torch.arange(tokens)
    if positions is not None:
        at[: len(positions)] = torch.tensor(positions)
    additive = torch.zeros(tokens, tokens).masked_fill(~attends, torch.finfo(torch.float32).min)
    return {"attention_mask": additive[None, None], "position_ids": at[None]}
