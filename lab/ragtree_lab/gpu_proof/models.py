"""Models without files of weights: a folder with a configuration and a tokenizer of bytes."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ragtree_lab.families.shapes import FAMILIES
from ragtree_lab.families.shapes import Shape as FamilyShape

CONTROL_TOKENS = ("<|start|>", "<|end|>", "<|endoftext|>")


class Shape(NamedTuple):
    """The dimensions of a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


SHAPES = {
    "tiny": Shape(2, 128, 4, 2, 32, 256, 1024),
    "one layer": Shape(1, 512, 8, 4, 64, 1024, 1024),
    "small": Shape(4, 512, 8, 4, 64, 1024, 1024),
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 32_000),
    "7b": Shape(32, 4096, 32, 8, 128, 14_336, 32_000),
}
"""``7b`` is Mistral-7B's shape without its sliding window: 128 KiB of KV a token in bfloat16."""


def make_model(folder: Path, name: str, longest: int) -> Path:
    """A model folder of a shape, for prompts and answers of up to ``longest`` tokens. It may be there already."""
    if folder.exists():
        return folder
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    folder.mkdir(parents=True)
    config = _llama(SHAPES[name], longest) if name in SHAPES else _of_family(FAMILIES[name].shape, longest)
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}  # nosec B105  # a token of text
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


def _llama(shape: Shape, longest: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": longest,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,  # nosec B105  # a token of text
        "eos_token_id": None,  # nosec B105  # a token of text
    }


def _of_family(shape: FamilyShape, longest: int) -> dict[str, Any]:
    """The configuration of another family, with what transformers has where the shape says nothing."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = shape["model_type"]
    sizes = {name: value for name, value in shape.items() if name != "model_type"}
    sizes |= {"vocab_size": SHAPES["small"].vocabulary, "max_position_embeddings": longest}
    without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(kind, **sizes, **without)
    made: dict[str, Any] = config.to_dict()
    return made | {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
