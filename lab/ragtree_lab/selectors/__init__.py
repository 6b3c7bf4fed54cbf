"""Selectors of other papers, and simple ones to compare with. The product's own are ``query`` and ``none``."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
import torch

from generator.composing.selection.added import EngineParts
from generator.composing.selection.base import Selector
from protocol.errors import ConfigError
from ragtree_lab.selectors.attention_temperature import AttentionTemperature
from ragtree_lab.selectors.auxiliary.auxiliary_model import AuxiliaryModel
from ragtree_lab.selectors.auxiliary.document_cache import DocumentCache
from ragtree_lab.selectors.auxiliary.token_spans import TokenSpans
from ragtree_lab.selectors.auxiliary_attention import AuxiliaryAttention
from ragtree_lab.selectors.cache_blend import CacheBlend
from ragtree_lab.selectors.first_tokens import FirstTokens
from ragtree_lab.selectors.random_windows import RandomWindows

log = structlog.get_logger(__name__)


def selectors(parts: EngineParts) -> dict[str, Selector]:
    """All of them, by name. ``cacheclip`` needs ``generator.kv.auxiliary_model``."""
    return {
        "cacheblend": CacheBlend(parts.layers, parts.forward, parts.sum_of_ranks),
        "epic": FirstTokens(),
        "random": RandomWindows(),
        "ape": AttentionTemperature(parts.layers, parts.page_tokens),
        **_auxiliary_selectors(parts),
    }


def _auxiliary_selectors(parts: EngineParts) -> dict[str, Selector]:
    """The selectors that ask an auxiliary model, or none if it is not configured, or cannot be used."""
    if parts.settings.auxiliary_model is None:
        return {}
    try:
        auxiliary = AuxiliaryModel(Path(parts.settings.auxiliary_model), parts.model.dtype)
        tokens = TokenSpans(Path(parts.model.tokenizer))
    except ConfigError as error:
        log.warning("auxiliary_model_not_used", reason=error.message)
        return {}
    size = int(parts.settings.auxiliary_gib * (1 << 30))
    # The number of threads that torch uses is a setting of each thread.
    beside = ThreadPoolExecutor(1, "select", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
    return {
        "cacheclip": AuxiliaryAttention(auxiliary, tokens, DocumentCache(size), beside, strict=False),
        "cacheclip-strict": AuxiliaryAttention(auxiliary, tokens, DocumentCache(size), beside, strict=True),
    }
