"""Follow-ups: whether the last question of a conversation finds its documents, with and without those before it.

The corpus is the demo's: Python's standard library. It is ingested once into a folder that is kept. Each conversation
is searched with its last question alone, which is the baseline, and with the question before it as its context.

Limits: a small set of our own, in English, on which the way to use the context was chosen, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.follow_ups.conversations import ALONE, CHANGES, FOLLOW_UPS, Conversation
from benchmarks.measuring.progress import Progress
from benchmarks.workloads.corpus_store import ingest_corpus, search_corpus
from benchmarks.workloads.datasets import Document, Question
from gateway.search.last_question import last_question
from protocol.prompts import ChatMessage
from retriever.build import build_retriever
from retriever.demo_corpus.stdlib_corpus import stdlib_documents
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings

EARLIER = (0, 1)
"""How many earlier questions are searched with."""

TOP_K = 5
_MOST_CHARACTERS = 4000

KINDS: Mapping[str, Sequence[Conversation]] = {"follow-up": FOLLOW_UPS, "alone": ALONE, "change": CHANGES}


class FollowUpRow(msgspec.Struct, frozen=True):
    """The share of a kind's conversations that find a document of their answer among the first 5 chunks."""

    kind: str
    earlier: int
    conversations: int
    found_at_5: float


class FollowUpResult(msgspec.Struct, frozen=True):
    """One row for each kind and number of earlier questions."""

    rows: list[FollowUpRow]


class DemoCorpus:
    """The demo corpus as a corpus of benchmarks."""

    name = "stdlib"
    corpus = "stdlib"

    def documents(self) -> Iterator[Document]:
        """Iterate over the corpus."""
        return (Document(found.id, found.text, found.title) for found in stdlib_documents())

    def questions(self) -> Iterator[Question]:
        """It has no questions."""
        return iter(())


class FollowUpBenchmark:
    """Searches conversations in a retriever whose store is kept in ``folder``."""

    def __init__(self, settings: RetrieverSettings, folder: Path, progress: Progress) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress

    async def run(self) -> FollowUpResult:
        """Measure. Raises what the retriever raises."""
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            await ingest_corpus(retriever, DemoCorpus(), self._progress)
            rows = []
            for kind, conversations in KINDS.items():
                for earlier in EARLIER:
                    found = [await self._finds(retriever, one, earlier) for one in conversations]
                    rows.append(FollowUpRow(kind, earlier, len(conversations), fmean(found)))
                    self._progress(f"searching {kind}", earlier + 1, len(EARLIER))
            return FollowUpResult(rows)
        finally:
            await retriever.close()

    async def _finds(self, retriever: Retriever, conversation: Conversation, earlier: int) -> bool:
        messages = [ChatMessage("user", text) for text in conversation.asked]
        question = last_question(messages, earlier, _MOST_CHARACTERS)
        assert question is not None
        found = await search_corpus(retriever, DemoCorpus(), question.text, TOP_K, context=question.context)
        return any(_is_in(chunk.document_id, conversation.found_in) for chunk in found.docs)


def _is_in(document: str, names: Sequence[str]) -> bool:
    return any(document == name or document.startswith(f"{name}.") for name in names)
