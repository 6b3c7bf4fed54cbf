"""Attention within dependency trees, in the place of the engine's own during one forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from generator.composing.attention_layers import AttentionLayer
from protocol.errors import ConfigError


class TreeQueries(NamedTuple):
    """Tokens of one tree that are computed: ``rows`` of the pass.

    They attend to the prompt's front and to the tree's tokens, up to the last that is computed: ``keys`` are the
    indices of all these in the pass's ``places``. ``mask`` says which of them each row attends to, shape [rows, keys].
    """

    rows: slice
    keys: torch.Tensor
    mask: torch.Tensor


class TreePass(NamedTuple):
    """What each layer needs to know about one forward pass: its queries, and the prompt's blocks.

    ``places`` are those of all tokens that any query attends to.
    """

    queries: Sequence[TreeQueries]
    places: torch.Tensor
    blocks: torch.Tensor


class TreeAttention:
    """Computes a layer's attention under the masks of a ``TreePass``, out of the layer's KV cache.

    vLLM's backends know no such masks, and their tables name whole blocks of tokens, but a branch has a few tokens.
    Writing to the KV cache stays with the ``layer``'s own implementation. Raises ConfigError for a layer whose
    attention does more than a softmax over scaled products.
    """

    def __init__(self, layer: AttentionLayer) -> None:
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

    def take(self) -> None:
        """Stand in for the layer's own attention."""
        self._layer.module.impl = self

    def give_back(self) -> None:
        """Let the layer attend as before."""
        self._layer.module.impl = self._own

    def forward(
        self,
        module: Any,  # noqa: ANN401, ARG002  # vLLM is untyped here
        query: torch.Tensor,
        key: torch.Tensor,  # noqa: ARG002
        value: torch.Tensor,  # noqa: ARG002
        kv_cache: torch.Tensor,  # noqa: ARG002
        attn_metadata: TreePass,
        output: torch.Tensor,
        **_: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        """Fill ``output`` [tokens, heads, value_dim] for ``query`` [tokens, heads, key_dim]."""
        # Once for all trees: each of them attends to the front.
        keys, values = self._layer.kv(attn_metadata.blocks, attn_metadata.places)
        for rows, own, mask in attn_metadata.queries:
            attended = scaled_dot_product_attention(
                query[rows].movedim(0, 1)[None],
                keys[own].movedim(0, 1)[None],
                values[own].movedim(0, 1)[None],
                attn_mask=mask[None, None],
                scale=self._own.scale,
                enable_gqa=True,
            )
            output[rows] = attended[0].movedim(0, 1)
        return output


@contextmanager
def in_place_of_own(attentions: Sequence[TreeAttention]) -> Iterator[None]:
    """Have the layers attend within trees."""
    for attention in attentions:
        attention.take()
    try:
        yield
    finally:
        for attention in attentions:
            attention.give_back()
