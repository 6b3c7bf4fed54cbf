"""The embedder without a model: the shipped fake."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from retriever.embedding.base import Vector, unit_rows
from retriever.embedding.words import word_tokenizer
from retriever.settings import HashingSettings

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Bags of words, hashed into buckets: texts are near when they share words, the long ones above all.

    Deterministic across processes and machines; for tests, load tests and trying the stack without a model.
    """

    def __init__(self, settings: HashingSettings | None = None) -> None:
        settings = settings or HashingSettings()
        self.name = "hashing"
        self.dimension = settings.dimension
        self.max_tokens = settings.max_tokens
        self.fingerprint = f"hashing:{settings.dimension}"
        self.tokenizer: Tokenizer = word_tokenizer()

    def embed_query(self, text: str) -> Vector:
        """The vector of a question, [dimension]."""
        return self.embed_documents([text]).reshape(self.dimension)

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """The vectors of texts, [n, dimension]."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return unit_rows(np.stack([self._row(text) for text in texts]))

    def _row(self, text: str) -> Vector:
        row = np.zeros(self.dimension, np.float32)
        for word, count in Counter(_WORD.findall(text.lower())).items():
            code = zlib.crc32(word.encode("utf-8", "replace"))
            # Short words are mostly the ones that every text has; the sign lets collisions cancel.
            weight = np.sqrt(count) * (1.0 if len(word) > 3 else 0.2)
            row[code % self.dimension] += weight if code & 0x10000000 else -weight
        if not row.any():
            # A text of marks alone, or whose words cancel: a zero vector would have no direction.
            row[zlib.crc32(text.encode("utf-8", "replace")) % self.dimension] = 1.0
        return row
