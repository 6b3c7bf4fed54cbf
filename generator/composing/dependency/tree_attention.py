"""Attention within dependency trees, instead of the engine's own during one forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from generator.composing.attention_layers import AttentionLayer
from generator.composing.dependency.forest import TreePass
from protocol.errors import ConfigError


class TreeAttention:
    """Computes a layer's attention under the masks of a ``TreePass``. ``number`` is the layer's place in ``computed``.

    vLLM's backends know no such masks, and their tables name whole blocks of tokens, but a branch has a few tokens.
    Writing to the KV cache stays with the ``layer``'s own implementation. Raises ConfigError for a layer whose
    attention does more than a softmax over scaled products.
    """

    def __init__(self, number: int, layer: AttentionLayer) -> None:
        self._number = number
        self._layer = layer
        self._own = layer.module.impl
        for feature in ("logits_soft_cap", "sinks", "alibi_slopes"):
            value = getattr(self._own, feature, None)
            # Backends say 0 or None for none.
            if isinstance(value, torch.Tensor) or value:
                raise ConfigError(
                    f"the attention of layer {layer.name} has {feature}, which trees do not know", "graph"
                )
        if layer.module.attn_backend.forward_includes_kv_cache_update:
            raise ConfigError(f"the attention of layer {layer.name} writes its keys itself", "graph")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever vLLM asks its implementation for
        return getattr(self._own, name)

    @contextmanager
    def in_place_of_own(self) -> Iterator[None]:
        """Have the layer attend within trees."""
        self._layer.module.impl = self
        try:
            yield
        finally:
            self._layer.module.impl = self._own

    def forward(
        self,
        module: Any,  # noqa: ANN401, ARG002  # vLLM is untyped here
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,  # noqa: ARG002
        attn_metadata: TreePass,
        output: torch.Tensor,
        **_: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        """Fill ``output`` [tokens, heads, value_dim].

        ``query`` and ``key`` are [tokens, heads, key_dim], and ``value`` is [tokens, heads, value_dim].
        """
        context, chosen, mask, blocks, computed = attn_metadata
        if computed is not None:
            own = computed.layers[self._number]
            own.keys.copy_(key)
            own.values.copy_(value)
        # The pass's own KV is in the cache by now, too. There it has the backend's layout, which takes longer to read.
        there = self._layer.kv(blocks, context)
        keys = torch.cat([there.keys, key]).index_select(0, chosen.flatten())
        values = torch.cat([there.values, value]).index_select(0, chosen.flatten())
        groups, size = mask.shape[:2]
        queries = pad(query, (0, 0, 0, 0, 0, groups * size - len(query)))
        attended = scaled_dot_product_attention(
            _in_groups(queries, groups),
            _in_groups(keys, groups),
            _in_groups(values, groups),
            attn_mask=mask[:, None],
            scale=self._own.scale,
            enable_gqa=True,
        )
        output.copy_(attended.transpose(1, 2).flatten(0, 1)[: len(query)])
        return output


def _in_groups(numbers: torch.Tensor, groups: int) -> torch.Tensor:
    """What is [tokens, heads, dim], as [groups, heads, tokens of a group, dim]."""
    return numbers.view(groups, -1, *numbers.shape[1:]).transpose(1, 2)
