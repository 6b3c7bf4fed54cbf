"""The baselines: plain vLLM in several kinds, each in vLLM's default settings and in those of our engine."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec

from generator.engines.vllm_arguments import has_gpu
from protocol.errors import ConfigError
from ragtree_lab.measuring.lmcache_server import has_lmcache

NATIVE = "native"
"""vLLM's own offloading, which copies KV between a GPU and host memory only."""

LMCACHE = "lmcache"
"""Offloading to a server of LMCache's, also from a CPU's KV cache."""


class Steps(StrEnum):
    """How a baseline batches its prefills: as vLLM does by default, or as our engine is set up on this device."""

    DEFAULT = "default"
    OURS = "ours"

    @property
    def engine_args(self) -> Mapping[str, Any]:
        """The engine arguments that set it."""
        return _VLLM_STEPS if self is Steps.DEFAULT else MappingProxyType({})


_VLLM_STEPS: Mapping[str, Any] = MappingProxyType(
    {"max_num_batched_tokens": None, "long_prefill_token_threshold": 0, "max_num_seqs": None}  # nosec B105  # a length, no password
)
"""Arguments with which vLLM chooses its own values."""


class Baseline(msgspec.Struct, frozen=True):
    """A kind of plain vLLM.

    With ``equal_memory``, its KV cache is as large as all our tiers in memory together. ``offloading`` names a backend
    that offloads KV to as much host memory as ours: ``NATIVE`` or ``LMCACHE``.
    """

    prefix_caching: bool
    equal_memory: bool = False
    offloading: str = ""


BASELINES = {
    "vllm": Baseline(prefix_caching=False),
    "vllm-prefix": Baseline(prefix_caching=True),
    "vllm-prefix-equal": Baseline(prefix_caching=True, equal_memory=True),
    "vllm-offload": Baseline(prefix_caching=True, offloading=NATIVE),
    "vllm-lmcache": Baseline(prefix_caching=True, offloading=LMCACHE),
}
"""All baselines by name."""


def check_baselines(names: Sequence[str]) -> None:
    """Raise ConfigError for names that are no baselines, are repeated, or need a GPU or a package that is not there."""
    if unknown := set(names) - BASELINES.keys():
        raise ConfigError(
            f"unknown baseline {', '.join(sorted(unknown))}; the baselines are {', '.join(BASELINES)}", "against"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"a baseline is repeated in {', '.join(names)}", "against")
    offloading = {BASELINES[name].offloading: name for name in names}
    if NATIVE in offloading and not has_gpu():
        raise ConfigError(f"{offloading[NATIVE]}: vLLM itself offloads KV only from a GPU, which is missing", "against")
    if LMCACHE in offloading and not has_lmcache():
        raise ConfigError(f"{offloading[LMCACHE]} needs the package lmcache, which is not installed", "against")
