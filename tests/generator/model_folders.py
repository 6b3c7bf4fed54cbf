"""Small model folders with a byte-level tokenizer, control tokens, and any chat template."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CONTROL_TOKENS = ("<|start|>", "<|end|>", "<|endoftext|>")

CHATML = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
"""Accepts any role anywhere."""

NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Alternate!') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content | trim }}<|end|>\n{% endfor %}{{ '<|start|>assistant\n' }}"
)
"""Refuses a system turn, as Gemma's does, and consecutive turns of one role."""

OMITS_SYSTEM = (
    "{% for message in messages %}{% if message.role in ['user', 'assistant'] %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endif %}{% endfor %}{{ '<|start|>assistant\n' }}"
)
"""Silently omits turns of unknown roles."""


def make_model_folder(folder: Path, template: str | None = CHATML) -> Path:
    """A model folder with a tokenizer of one token a byte, and ``template`` as its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def control_ids(folder: Path) -> set[int]:
    """The ids that only a chat template may produce."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {tokenizer.token_to_id(token) for token in CONTROL_TOKENS}
    assert None not in ids
    return ids


def make_weights(file: Path, tensors: dict[str, int]) -> dict[str, int]:
    """A safetensors file with tensors of so many bytes, all zeros, which take no room on disk.

    Returns where each tensor begins.
    """
    offsets, end = {}, 0
    for name, size in tensors.items():
        offsets[name], end = end, end + size
    header = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [offsets[name], offsets[name] + size]}
        for name, size in tensors.items()
    }
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with file.open("wb") as content:
        content.write(len(encoded).to_bytes(8, "little") + encoded)
        content.truncate(8 + len(encoded) + end)
    return {name: 8 + len(encoded) + offset for name, offset in offsets.items()}
