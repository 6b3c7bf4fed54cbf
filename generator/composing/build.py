"""The composition root of composing: puts a composer together for one engine."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.distributed import tensor_model_parallel_all_gather, tensor_model_parallel_all_reduce

from generator.composing.attention_layers import MOST_ERROR, AttentionLayer, attention_layers
from generator.composing.composer import Composer, Deviation
from generator.composing.dependency.branch_cache import BranchCache, TokenKv
from generator.composing.dependency.tree_composer import TreeComposer
from generator.composing.partial_forward import PartialForward
from generator.composing.selection.added import EngineParts, added_selectors
from generator.composing.selection.base import Nothing, Selector
from generator.composing.selection.question_attention import QuestionAttention
from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.settings import KvSettings
from protocol.errors import ConfigError
from protocol.generation import ASKED_TOKENS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_PROBED = (1, 100, 1000)
"""Positions that a token is moved to, to check the rotation."""

_PROBED_TOKEN = 100
"""A token id that every vocabulary has."""


class Composers(NamedTuple):
    """What composes an engine's KV: ``documents``, and dependency ``trees``, or None and why not (``no_trees``).

    The KV of ``branch_tokens`` tokens is kept.
    """

    documents: Composer
    trees: TreeComposer | None
    no_trees: str
    branch_tokens: int


def new_composers(runner: "GPUModelRunner", blocks: PagedBlocks, num_blocks: int, settings: KvSettings) -> Composers:
    """Composers on an engine's model, which must be idle. Raises ConfigError if its KV cannot be composed."""
    config = runner.vllm_config
    _check_kind(config, blocks)
    registered = config.compilation_config.static_forward_context
    layers = attention_layers(runner.model, registered, blocks.places(), num_blocks)
    forward = PartialForward(runner, blocks.page_tokens)
    _check_rotation(layers, forward, config.model_config.max_model_len)
    scheduler = config.scheduler_config
    step_tokens = scheduler.long_prefill_token_threshold or scheduler.max_num_batched_tokens
    parts = EngineParts(
        layers, forward, blocks.page_tokens, config.model_config, settings, tensor_model_parallel_all_reduce
    )
    selectors: dict[str, Selector] = {
        "query": QuestionAttention(layers, forward, _highest_of_ranks, min(ASKED_TOKENS, blocks.page_tokens)),
        "none": Nothing(),
        **added_selectors(parts),
    }
    deviation = Deviation(layers[len(layers) // 2], tensor_model_parallel_all_reduce)
    page_tokens = blocks.page_tokens
    documents = Composer(layers, forward, selectors, deviation, page_tokens, step_tokens)
    branch_tokens = int(settings.graph_gib * (1 << 30)) * page_tokens // blocks.page_bytes
    memory = TokenKv.empty(branch_tokens, layers, torch.device("cpu"))
    try:
        trees = TreeComposer(layers, forward, BranchCache(memory), page_tokens, step_tokens)
    except ConfigError as error:
        return Composers(documents, None, error.message, 0)
    return Composers(documents, trees, "", branch_tokens)


def _check_kind(config: "VllmConfig", blocks: PagedBlocks) -> None:
    """Raise ConfigError for KV that is not keys and values in the model's own dtype."""
    if config.model_config.use_mla:
        raise ConfigError("KV of multi-head latent attention (MLA) cannot be composed", "reuse")
    # Not by the option: a checkpoint may ask for FP8 where the option says auto.
    if blocks.dtype is torch.uint8:
        raise ConfigError("KV in FP8 cannot be composed", "reuse")
    if not blocks.paging.keeps_all:
        raise ConfigError("KV of windows and of states cannot be composed: it is there for whole paths", "reuse")


def _highest_of_ranks(scores: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum over tensor-parallel ranks: vLLM has sums only."""
    gathered: torch.Tensor = tensor_model_parallel_all_gather(scores[None], 0)
    return gathered.amax(0)


def _check_rotation(layers: list[AttentionLayer], forward: PartialForward, longest: int) -> None:
    """Compare moved keys with those that the model computes. A token that stands alone sees itself at any position."""
    block = torch.tensor([1], device=forward.device)
    forward.compute_alone(_PROBED_TOKEN, 0, 1)
    there = [layer.keys(block, slice(1)) for layer in layers]
    for position in _PROBED:
        if position >= longest:
            continue
        forward.compute_alone(_PROBED_TOKEN, position, 1)
        for layer, keys in zip(layers, there, strict=True):
            error = layer.rotation.error(keys, position, layer.keys(block, slice(1)))
            if not error < MOST_ERROR:
                raise ConfigError(
                    f"the KV of layer {layer.name} cannot be composed: moved by {position} positions, its keys differ "
                    f"by {error:.0%} from those that the model computes there; set controller.reuse to exact",
                    "reuse",
                )
