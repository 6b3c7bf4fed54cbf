"""The embedder that calls an endpoint with OpenAI's API."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openai
from tokenizers import Tokenizer

from protocol.errors import ConfigError, InvalidRequest, Unavailable
from retriever.embedding.base import Vector, unit_rows
from retriever.embedding.hashing import word_tokenizer
from retriever.settings import OpenAISettings


class OpenAIEmbedder:
    """Calls an endpoint that serves OpenAI's embeddings API. A first call determines ``dimension`` if it is not set.

    The client retries transient failures (connections, 429, 5xx) ``max_retries`` times with growing pauses. Raises
    ConfigError or Unavailable.
    """

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self.max_tokens = settings.max_tokens
        self.tokenizer = _tokenizer(settings.tokenizer)
        try:
            self._client = openai.OpenAI(
                base_url=settings.base_url,
                api_key=settings.api_key.get_secret_value() if settings.api_key else None,
                timeout=settings.timeout_s,
                max_retries=settings.max_retries,
            )
        except openai.OpenAIError as error:
            raise ConfigError(str(error)) from error
        self.name = settings.model
        self.dimension = settings.dimensions or self.embed_query("dimension").shape[0]
        self.fingerprint = f"openai:{settings.model}:{self.dimension}"

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, [dimension]."""
        # The endpoint refuses texts that are too long. Truncate a query instead.
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) > self.max_tokens:
            text = text[: encoding.offsets[self.max_tokens][0]]
        return self.embed_documents([text]).reshape(-1)

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """Return the vectors of texts, [n, dimension]."""
        size = self._settings.batch_size
        batches = [self._request(texts[at : at + size]) for at in range(0, len(texts), size)]
        return np.concatenate(batches) if batches else np.zeros((0, self.dimension), np.float32)

    def _request(self, texts: Sequence[str]) -> Vector:
        dimensions = self._settings.dimensions or openai.omit
        try:
            reply = self._client.embeddings.create(
                model=self._settings.model, input=list(texts), dimensions=dimensions, encoding_format="float"
            )
        except (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError) as error:
            raise Unavailable(f"the embedding endpoint does not answer: {error}") from error
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            raise InvalidRequest(f"the embedding endpoint rejects the text: {error.message}") from error
        except openai.OpenAIError as error:
            raise ConfigError(f"the embedding endpoint cannot be used: {error}") from error
        rows = [item.embedding for item in sorted(reply.data, key=lambda item: item.index)]
        vectors = np.asarray(rows, np.float32)
        if len(rows) != len(texts) or vectors.ndim != 2:
            raise ConfigError(f"the embedding endpoint returned {len(rows)} vectors for {len(texts)} texts")
        return unit_rows(vectors)


def _tokenizer(name: str | None) -> Tokenizer:
    if name is None:
        return word_tokenizer()
    try:
        tokenizer = Tokenizer.from_file(name) if Path(name).is_file() else Tokenizer.from_pretrained(name)
    except Exception as error:
        # The tokenizers library raises bare Exceptions.
        raise ConfigError(f"the tokenizer {name} cannot be loaded: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
