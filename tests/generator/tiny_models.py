"""Tiny models with random weights, whose answers depend on all tokens of a prompt."""

from pathlib import Path

import torch
from model_folders import make_model_folder

VOCABULARY = 1024


def tiny_llama(folder: Path) -> Path:
    """A Llama of two layers, whose heads can be split among two ranks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    make_model_folder(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        # Larger than usual: attention is nearly uniform otherwise, and wrong KV changes no token.
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
