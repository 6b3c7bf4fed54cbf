"""The auxiliary model: its own KV of documents, and a question's attention to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from generator.composing.attention_layers import MOST_ERROR, Rotation
from protocol.errors import ConfigError
from ragtree_lab.selectors.auxiliary.reading import PREFIX, model_with_attention
from ragtree_lab.selectors.auxiliary.token_spans import Span, TokenSpans

_MOVED_BY = 1000


class DocumentKv(NamedTuple):
    """A document's KV behind the prefix: of each layer, keys and values of shape [tokens, kv_heads, dim].

    ``spans`` are the characters of its tokens.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    spans: list[Span]

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.spans)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sum(part.nbytes for part in (*self.keys, *self.values))


class AuxiliaryModel:
    """A language model of a folder, on the CPU. It has its own tokenizer, so all texts are given as such.

    Raises ConfigError if the folder has no model that can be used.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._tokens = TokenSpans(folder)
        self._model = model_with_attention(folder, dtype)
        self._rotation = _rotation(self._model, folder)
        self._prefix = self._computed(PREFIX, None)
        self._check_rotation(folder)

    def read(self, text: str) -> DocumentKv:
        """A document's KV behind the prefix."""
        return self._computed(text, self._prefix)

    def attention(self, question: str, documents: Sequence[DocumentKv]) -> list[torch.Tensor]:
        """The attention of a question in the last layer to each token of documents that stand in front of it.

        A mean over the question's tokens and the heads, of shape [tokens] for each document.
        """
        parts = [self._prefix]
        at = behind_prefix = self._prefix.tokens
        for document in documents:
            moved = [self._rotation.moved(keys, at - behind_prefix) for keys in document.keys]
            parts.append(document._replace(keys=moved))
            at += document.tokens
        ids = self._tokens.of_text(question).token_ids
        if not ids:
            return [torch.zeros(document.tokens) for document in documents]
        with torch.inference_mode():
            output = self._model(
                torch.tensor([ids]), past_key_values=_cache(parts), use_cache=True, output_attentions=True
            )
        weights = output.attentions[-1][0].float().mean((0, 1))
        return list(weights[behind_prefix:at].split([document.tokens for document in documents]))

    def _computed(self, text: str, front: DocumentKv | None, first_position: int = 0) -> DocumentKv:
        spelled = self._tokens.of_text(text)
        behind = front.tokens if front is not None else 0
        if front is not None and not spelled.token_ids:
            return DocumentKv([keys[:0] for keys in front.keys], [values[:0] for values in front.values], [])
        positions = torch.arange(len(spelled.token_ids))[None] + behind + first_position
        with torch.inference_mode():
            output = self._model(
                torch.tensor([spelled.token_ids]),
                position_ids=positions,
                past_key_values=_cache([front] if front is not None else []),
                use_cache=True,
            )
        layers = output.past_key_values.layers
        return DocumentKv(
            [layer.keys[0, :, behind:].transpose(0, 1).contiguous() for layer in layers],
            [layer.values[0, :, behind:].transpose(0, 1).contiguous() for layer in layers],
            spelled.spans,
        )

    def _check_rotation(self, folder: Path) -> None:
        there = self._computed(PREFIX, None, _MOVED_BY)
        for keys, expected in zip(self._prefix.keys, there.keys, strict=True):
            error = self._rotation.error(keys, _MOVED_BY, expected)
            if not error < MOST_ERROR:
                raise _unusable(folder, f"moved keys differ by {error:.0%} from those that it computes")


def _rotation(model: Any, folder: Path) -> Rotation:  # noqa: ANN401  # transformers is untyped here
    """The rotation of the model's keys."""
    embedding = getattr(model.base_model, "rotary_emb", None)
    if embedding is None:
        raise _unusable(folder, "its keys are not rotated by their positions")
    positions = torch.arange(model.config.max_position_embeddings)
    cos, sin = embedding(torch.zeros(1, dtype=torch.float32), positions[None])
    half = cos.shape[-1] // 2
    return Rotation(torch.cat([cos[0, :, :half], sin[0, :, :half]], -1), neox=True)


def _cache(parts: Sequence[DocumentKv]) -> Any:  # noqa: ANN401  # transformers is untyped here
    """A KV cache of transformers with these parts."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    for layer in range(len(parts[0].keys) if parts else 0):
        keys = torch.cat([part.keys[layer] for part in parts]).transpose(0, 1)[None]
        values = torch.cat([part.values[layer] for part in parts]).transpose(0, 1)[None]
        cache.update(keys, values, layer)
    return cache


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"the auxiliary model {folder} cannot be used: {why}", "generator.kv.auxiliary_model")
