"""Small models with random weights, for what depends on a model's shape and not on what it has learnt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SPREAD = 0.15
"""The standard deviation of the weights: large enough that an answer depends on every token of its prompt."""


def make_random_model(folder: Path, source: Path, shape: Mapping[str, Any]) -> Path:
    """Make a model in ``folder``, with the tokenizer of the model in the folder ``source``.

    ``shape`` is what its ``config.json`` has, but for the sizes of the vocabulary. The weights are the same each time.
    Raises ConfigError for a shape of which no model can be made.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

    from protocol.errors import ConfigError

    known = AutoConfig.from_pretrained(source)  # nosec B615  # a folder, not the hub
    tokenizer = AutoTokenizer.from_pretrained(source)  # nosec B615  # the same folder
    kind, sizes = shape.get("model_type"), {name: value for name, value in shape.items() if name != "model_type"}
    try:
        config = AutoConfig.for_model(
            kind,
            **sizes
            | {
                "vocab_size": known.vocab_size,
                "bos_token_id": known.bos_token_id,
                "eos_token_id": known.eos_token_id,
                "pad_token_id": known.eos_token_id,
            },
        )
        set_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise ConfigError(f"no model can be made of the shape of a {kind!r}: {error}") from error
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
