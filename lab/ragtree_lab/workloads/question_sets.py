"""Workloads with the skew of real retrieval: the questions of a set, and the chunks retrieved for them.

Sets are folders with questions, documents or both (see `ragtree_lab.workloads.datasets`). ``squad`` means its questions
over its own corpus. ``mmlu@squad`` means the questions of mmlu over the corpus of squad; any two sets can be combined,
which sets without a corpus need.

Corpora are ingested into the folder of `ragtree_lab.recall`, so both share their embeddings. Retrieval results are kept
too, so a workload opens at once the second time. Data sets are only read.
"""

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

from examine.measuring import Progress
from protocol.atomic_files import write_atomically
from protocol.errors import ConfigError
from ragtree_lab.workloads.corpus_store import ingest_corpus, search_corpus
from ragtree_lab.workloads.datasets import DOCUMENTS_FILE, QUESTIONS_FILE, Dataset, Question
from ragtree_lab.workloads.synthetic import DocumentLengths
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload, check_rate
from retriever.build import build_retriever
from retriever.settings import RetrieverSettings

TOKENS_A_WORD = 1.3
# Chinese and Japanese have no spaces, so each character counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text without a tokenizer: 1.3 per word, at least one."""
    return max(1, round(TOKENS_A_WORD * sum(1 for _ in _WORD.finditer(text))))


class FoundChunk(msgspec.Struct, frozen=True, array_like=True):
    """A retrieved chunk, and the estimated tokens of its text."""

    id: str
    tokens: int


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of a search for ``top_k`` chunks, best first."""

    top_k: int
    chunks: tuple[FoundChunk, ...]


Found = dict[int, Finding]
"""Results by the question's index in its set."""

_KEPT_EVERY = 1000


class QuestionSet(Dataset):
    """A data set whose name may include the corpus of another one, as in ``mmlu@squad``."""

    def __init__(self, data: Path, name: str, one_in: int = 1) -> None:
        asked, _, corpus = name.partition("@")
        super().__init__(data, asked, corpus, one_in)
        if corpus:
            self.name = f"{asked}@{self.corpus}"

    @staticmethod
    def exists(data: Path, name: str) -> bool:
        """Return whether this names a question set below ``data``."""
        asked, _, corpus = name.partition("@")
        return asked in _folders_with(data, QUESTIONS_FILE) and (corpus or asked) in _folders_with(data, DOCUMENTS_FILE)

    @staticmethod
    def names(data: Path) -> list[str]:
        """Return the names of question sets below ``data``; a set without a corpus has a placeholder for one."""
        corpora = _folders_with(data, DOCUMENTS_FILE)
        asked = _folders_with(data, QUESTIONS_FILE)
        lone = [corpus for corpus in corpora if corpus not in asked]
        return [name if name in corpora else f"{name}@CORPUS" for name in asked] + [
            f"QUESTIONS@{name}" for name in lone
        ]

    def hash(self) -> str:
        """Return a hash that changes with the questions or the corpus."""
        digest = blake3()
        for file in self.files:
            digest.update(blake3().update_mmap(file).digest())
        return digest.hexdigest()


class QuestionRetrieval:
    """Retrieves chunks for questions, once each; results are kept below ``folder``.

    There is one file for each combination of questions, corpus, and settings that affect results. A search for more
    chunks than before is repeated; a search for fewer uses the first of the stored ones.
    """

    def __init__(self, settings: RetrieverSettings, folder: Path, progress: Progress) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress

    def find(
        self, questions: QuestionSet, asked: Sequence[tuple[int, Question]], top_k: int
    ) -> dict[int, tuple[FoundChunk, ...]]:
        """Return the chunks of these questions by index, best first; ``asked`` has each question with its index.

        Do not call it inside a running event loop. Raises what the retriever raises, including StorageFull.
        """
        file = self._file(questions)
        found = _read(file)
        missing = [asking for asking in asked if asking[0] not in found or found[asking[0]].top_k < top_k]
        if missing:
            try:
                asyncio.run(self._search(questions, missing, top_k, found, file))
            finally:
                # Keep the results of an interrupted run.
                write_atomically(file, msgspec.json.encode(found), mode=0o644)
        return {place: found[place].chunks[:top_k] for place, _ in asked}

    def _file(self, questions: QuestionSet) -> Path:
        settings = self._settings.model_dump_json(include={"embedder", "chunks", "index", "search"})
        key = blake3(msgspec.json.encode((questions.hash(), settings))).hexdigest(8)
        return self._folder / "bench" / "retrieved" / f"{questions.name}-{key}.json"

    async def _search(
        self, questions: QuestionSet, asked: Sequence[tuple[int, Question]], top_k: int, found: Found, file: Path
    ) -> None:
        retriever = build_retriever(self._settings, self._folder / "bench" / "recall")
        await retriever.start()
        try:
            await ingest_corpus(retriever, questions, self._progress)
            for done, (place, question) in enumerate(asked, start=1):
                last = await search_corpus(retriever, questions, question.question, top_k)
                chunks = [
                    FoundChunk(f"{chunk.document_id}#{chunk.index}", estimated_tokens(chunk.text))
                    for chunk in last.docs
                ]
                found[place] = Finding(top_k, tuple(chunks))
                self._progress("retrieving", done, len(asked))
                if not done % _KEPT_EVERY:
                    write_atomically(file, msgspec.json.encode(found), mode=0o644)
        finally:
            await retriever.close()


class QuestionSetWorkload(Workload):
    """Requests for questions in a seeded order with Poisson arrivals: each question once, then random ones.

    A request's documents are the chunks retrieved for its question, which is what RAGTree puts into a prompt and
    caches. Memory grows with the number of different questions.
    """

    def __init__(
        self, name: str, pool: Sequence[tuple[int, tuple[TraceDocument, ...]]], count: int, rate: float, seed: int
    ) -> None:
        self.name = name
        self._pool = pool
        self._count = count
        self._rate = rate
        self._seed = seed

    @property
    def length(self) -> int:
        """The requested number."""
        return self._count

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests."""
        draws = random.Random(f"requests {self._seed}")  # noqa: S311 - a repeatable draw
        arrival_s = 0.0
        for number in range(self._count):
            arrival_s += draws.expovariate(self._rate)
            question_tokens, documents = self._pool[
                number if number < len(self._pool) else draws.randrange(len(self._pool))
            ]
            yield TraceRequest(arrival_s, documents, question_tokens)


def open_question_set(
    questions: QuestionSet,
    settings: RetrieverSettings,
    cache_dir: Path,
    seed: int,
    *,
    count: int | None,
    top_k: int,
    rate: float,
    mean_tokens: float | None,
    progress: Progress,
) -> QuestionSetWorkload:
    """Open the workload of ``count`` requests, or of each question once, with the chunks retrieved for each question.

    Document lengths are drawn with mean ``mean_tokens`` and fixed by document and seed, or with None estimated from the
    texts. Do not call it inside a running event loop. Raises ConfigError, and what the retriever raises.
    """
    check_rate(rate)
    if top_k < 1 or (count is not None and count < 1):
        raise ConfigError(
            "top_k and the number of requests must be at least 1", param="requests" if top_k > 0 else "top_k"
        )
    lengths = None if mean_tokens is None else DocumentLengths(mean_tokens, seed)
    order = list(enumerate(questions.questions()))
    if not order:
        raise ConfigError(f"{questions.name} has no question", param="workload")
    random.Random(seed).shuffle(order)  # noqa: S311 - a repeatable order
    asked = order[:count]
    found = QuestionRetrieval(settings, cache_dir, progress).find(questions, asked, top_k)
    documents: dict[str, TraceDocument] = {}
    for place, _ in asked:
        for chunk in found[place]:
            if chunk.id not in documents:
                documents[chunk.id] = TraceDocument(chunk.id, lengths.of(chunk.id) if lengths else chunk.tokens)
    pool = [
        (estimated_tokens(question.question), tuple(documents[chunk.id] for chunk in found[place]))
        for place, question in asked
    ]
    return QuestionSetWorkload(questions.name, pool, len(order) if count is None else count, rate, seed)


def _folders_with(data: Path, file: str) -> list[str]:
    return sorted(found.parent.name for found in data.glob(f"*/{file}"))


def _read(file: Path) -> Found:
    """Return a file's content; empty if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
