"""How an auxiliary model reads prompts, also while it is trained."""

from pathlib import Path
from typing import Any

import torch

from protocol.errors import ConfigError

PREFIX = "Documents:\n\n"
"""Stands in front of every prompt. The first tokens of a prompt draw much attention, whatever they are."""


def model_with_attention(folder: Path, dtype: torch.dtype | str) -> Any:  # noqa: ANN401  # transformers is untyped here
    """The language model of a folder, which returns its attention. Raises ConfigError if it cannot be loaded."""
    from transformers import AutoModelForCausalLM

    try:
        # Eager attention, because no other returns its weights.
        return AutoModelForCausalLM.from_pretrained(  # nosec B615  # a local folder
            folder, dtype=dtype, attn_implementation="eager", local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {folder} cannot be loaded: {error}") from error
