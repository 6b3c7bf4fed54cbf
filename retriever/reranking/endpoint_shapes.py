"""The shapes of rerank endpoints: what they are asked, and what they answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class Rank(NamedTuple):
    """The score of the text at ``place``, counted from 0."""

    place: int
    score: float


class EndpointShape(Protocol):
    """The JSON of an endpoint's requests and replies."""

    def request(self, model: str | None, query: str, texts: Sequence[str], wanted: int) -> Mapping[str, object]:
        """The body that asks for the ``wanted`` best texts, or for all of them."""

    def ranks(self, reply: bytes | bytearray) -> list[Rank]:
        """The scores in a reply. Raises msgspec.DecodeError."""


class _CohereRank(msgspec.Struct):
    index: int
    relevance_score: float


class _CohereReply(msgspec.Struct):
    results: list[_CohereRank]


class CohereShape:
    """Cohere, Jina, vLLM and others."""

    def request(self, model: str | None, query: str, texts: Sequence[str], wanted: int) -> Mapping[str, object]:
        """``{model, query, documents, top_n}``."""
        named = {} if model is None else {"model": model}
        return {**named, "query": query, "documents": texts, "top_n": min(wanted, len(texts))}

    def ranks(self, reply: bytes | bytearray) -> list[Rank]:
        """``{results: [{index, relevance_score}]}``."""
        results = msgspec.json.decode(reply, type=_CohereReply).results
        return [Rank(result.index, result.relevance_score) for result in results]


class _TeiRank(msgspec.Struct):
    index: int
    score: float


class TeiShape:
    """Hugging Face's Text Embeddings Inference, which serves one model."""

    def request(self, model: str | None, query: str, texts: Sequence[str], wanted: int) -> Mapping[str, object]:  # noqa: ARG002
        """``{query, texts, truncate}``. Without ``truncate``, it refuses texts that are too long for its model."""
        return {"query": query, "texts": texts, "truncate": True}

    def ranks(self, reply: bytes | bytearray) -> list[Rank]:
        """``[{index, score}]``."""
        return [Rank(result.index, result.score) for result in msgspec.json.decode(reply, type=list[_TeiRank])]


SHAPES: Mapping[str, EndpointShape] = {"cohere": CohereShape(), "tei": TeiShape()}
"""By the name in the configuration."""
