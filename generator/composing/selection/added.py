"""Selectors that other packages add, such as the laboratory."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.partial_forward import PartialForward
from generator.composing.selection.base import Selector
from generator.settings import KvSettings

if TYPE_CHECKING:
    from vllm.config import ModelConfig

GROUP = "ragtree.selectors"
"""Entry points of this group name functions that make selectors, by their names, of ``EngineParts``."""


class EngineParts(NamedTuple):
    """What selectors may use of an engine: its ``layers``, parts of its ``forward`` pass, its ``model`` and settings.

    A block has ``page_tokens`` tokens. ``sum_of_ranks`` joins what tensor-parallel ranks have.
    """

    layers: Sequence[AttentionLayer]
    forward: PartialForward
    page_tokens: int
    model: "ModelConfig"
    settings: KvSettings
    sum_of_ranks: Callable[[torch.Tensor], torch.Tensor]


def added_selectors(parts: EngineParts) -> dict[str, Selector]:
    """The selectors of all packages that add some."""
    added: dict[str, Selector] = {}
    for entry in entry_points(group=GROUP):
        make: Callable[[EngineParts], Mapping[str, Selector]] = entry.load()
        added |= make(parts)
    return added
