"""A GGUF file of a random model with two small layers and a byte-level tokenizer."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

WIDTH, LAYERS, KV_WIDTH, INNER = 64, 2, 32, 128
VOCABULARY = ["<unk>", "<s>", "</s>", *(chr(33 + number) for number in range(94)), "ab"]


def write_tiny_gguf(path: Path, seed: int = 0, left_out: str = "", parts: int = 1) -> Path:
    """Write a Llama with random weights, all but ``left_out``, as the first of so many parts. Returns the path."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // 4)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3] + [1] * (len(VOCABULARY) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    draws = np.random.default_rng(seed)
    for name, shape in _shapes().items():
        if name == left_out:
            continue
        ones = name.endswith("norm.weight")
        writer.add_tensor(name, (np.ones(shape) if ones else draws.normal(size=shape) * 0.02).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(VOCABULARY), WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(VOCABULARY), WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (WIDTH,),
                "ffn_norm": (WIDTH,),
                "attn_q": (WIDTH, WIDTH),
                "attn_k": (KV_WIDTH, WIDTH),
                "attn_v": (KV_WIDTH, WIDTH),
                "attn_output": (WIDTH, WIDTH),
                "ffn_gate": (INNER, WIDTH),
                "ffn_up": (INNER, WIDTH),
                "ffn_down": (WIDTH, INNER),
            }.items()
        }
    return shapes
