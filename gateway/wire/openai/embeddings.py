"""Texts to embed and their vectors, in OpenAI's format."""

import base64
from array import array
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from gateway.wire.openai.request_fields import OpenAIBody, TokenIds, TokenLists
from gateway.wire.schemas import Text
from protocol.errors import UnsupportedParameter
from protocol.retrieval import EmbeddingRequest, Embeddings, TextKind

_Input = Annotated[Text, Field(min_length=1)]
_Inputs = Annotated[list[_Input], Field(fail_fast=True)]


class EmbeddingsBody(OpenAIBody):
    """OpenAI's request for embeddings. ``input_type`` says whether the texts are documents or queries."""

    model: str = Field(min_length=1)
    input: _Input | Annotated[_Inputs | TokenIds | TokenLists, Field(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1, le=1_000_000)
    input_type: TextKind | None = None

    def to_protocol(self) -> EmbeddingRequest:
        """The texts to embed. Raises UnsupportedParameter for token ids, which are those of OpenAI's own models."""
        given = [self.input] if isinstance(self.input, str) else self.input
        texts = tuple(text for text in given if isinstance(text, str))
        if len(texts) < len(given):
            raise UnsupportedParameter("RAGTree embeds strings, not token ids.", "input")
        return EmbeddingRequest(texts, self.model, self.input_type or "document", self.dimensions)


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of the text at ``index``: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in order."""

    object: Literal["list"] = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage


def encoded_embeddings(body: EmbeddingsBody, found: Embeddings) -> bytes:
    """The reply to a request as JSON, an ``EmbeddingList``, with vectors in the encoding that it asks for.

    Each vector is encoded by itself. In a thread, this lets others run in between: 2,048 vectors take 100 ms and more.
    """
    in_base64 = body.encoding_format == "base64"
    reply = EmbeddingList(data=(), model=body.model, usage=EmbeddingUsage(found.tokens, found.tokens))
    vectors: list[msgspec.Raw] = []
    for number, vector in enumerate(found.vectors):
        numbers = base64.b64encode(vector).decode() if in_base64 else list(array("f", vector))
        vectors.append(msgspec.Raw(msgspec.json.encode(Embedding(index=number, embedding=numbers))))
    return msgspec.json.encode(msgspec.structs.asdict(reply) | {"data": vectors})
