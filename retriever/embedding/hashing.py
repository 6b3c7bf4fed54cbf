"""The embedder without a model."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from retriever.embedding.base import Vector, unit_rows
from retriever.settings import HashingSettings

_TOKEN = r"\w{1,16}|[^\w\s]"  # noqa: S105  # nosec B105  # a pattern


def word_tokenizer() -> Tokenizer:
    """Create a tokenizer without a vocabulary. Its tokens carry only offsets."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106  # nosec B106  # a word
    # "removed" with invert keeps the matches and drops the rest.
    tokenizer.pre_tokenizer = Split(Regex(_TOKEN), behavior="removed", invert=True)
    return tokenizer


_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Hashes words into buckets. Texts are similar when they share words, long words above all.

    The vectors are the same in every process and on every machine. For tests, load tests and trials.
    """

    def __init__(self, settings: HashingSettings | None = None) -> None:
        settings = settings or HashingSettings()
        self.name = "hashing"
        self.dimension = settings.dimension
        self.max_tokens = settings.max_tokens
        self.fingerprint = f"hashing:{settings.dimension}"
        self.tokenizer: Tokenizer = word_tokenizer()

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, [dimension]."""
        return self.embed_documents([text]).reshape(self.dimension)

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """Return the vectors of texts, [n, dimension]."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return unit_rows(np.stack([self._row(text) for text in texts]))

    def _row(self, text: str) -> Vector:
        row = np.zeros(self.dimension, np.float32)
        for word, count in Counter(_WORD.findall(text.lower())).items():
            code = zlib.crc32(word.encode("utf-8", "replace"))
            # Short words are mostly common words. The sign lets collisions cancel out.
            weight = np.sqrt(count) * (1.0 if len(word) > 3 else 0.2)
            row[code % self.dimension] += weight if code & 0x10000000 else -weight
        if not row.any():
            # Without words, or if they cancel out, the vector would be zero and have no direction.
            row[zlib.crc32(text.encode("utf-8", "replace")) % self.dimension] = 1.0
        return row
