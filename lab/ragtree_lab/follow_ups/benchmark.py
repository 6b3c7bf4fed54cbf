"""Follow-ups: whether the last question of a conversation finds its documents, with and without those before it.

The corpus is the demo's: Python's standard library. It is ingested once into a folder that is kept. Each conversation
is searched with its last question alone, which is the baseline, with the question before it as its context, and with
the question that the model makes of both.

Limits: a small set of our own, in English, on which the way to use the context was chosen, too.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from examine.measuring import Progress
from gateway.query.follow_ups import EARLIER_QUESTIONS, FollowUps, last_question
from protocol.prompts import ChatMessage
from ragtree_lab.follow_ups.conversations import ALONE, CHANGES, FOLLOW_UPS, Conversation
from ragtree_lab.follow_ups.rewriting import ModelRewriter, Rewrite
from ragtree_lab.workloads.corpus_store import ingest_corpus, search_corpus
from ragtree_lab.workloads.datasets import Document, Question
from retriever.build import build_retriever
from retriever.demo_corpus.stdlib_corpus import stdlib_documents
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings

TOP_K = 5
_MOST_CHARACTERS = 4000

KINDS: Mapping[str, Sequence[Conversation]] = {"follow-up": FOLLOW_UPS, "alone": ALONE, "change": CHANGES}


class FollowUpRow(msgspec.Struct, frozen=True):
    """The share of a kind's conversations that find a document of their answer among the first 5 chunks."""

    kind: str
    way: FollowUps
    conversations: int
    found_at_5: float


class RewritingFigures(msgspec.Struct, frozen=True):
    """How a ``model`` rewrote: the median of the times, how many rewrites could not be used, and all of them."""

    model: str
    p50_ms: float
    unusable: int
    rewrites: list[Rewrite]


class FollowUpResult(msgspec.Struct, frozen=True):
    """One row for each kind of conversation and way to search its last question."""

    rows: list[FollowUpRow]
    rewriting: RewritingFigures | None = None


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

    async def run(self, rewriter: ModelRewriter | None = None, model: str = "") -> FollowUpResult:
        """Measure, with the ``rewriter`` of a ``model`` if there is one. Raises what the retriever and it raise."""
        rewrites = [] if rewriter is None else [rewrite async for rewrite in self._rewrites(rewriter)]
        made = {rewrite.asked: rewrite.question for rewrite in rewrites}
        ways = [way for way in FollowUps if rewrites or way is not FollowUps.REWRITTEN]
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            await ingest_corpus(retriever, DemoCorpus(), self._progress)
            rows = []
            for kind, conversations in KINDS.items():
                for number, way in enumerate(ways, start=1):
                    found = [await self._finds(retriever, one, way, made) for one in conversations]
                    rows.append(FollowUpRow(kind, way, len(conversations), fmean(found)))
                    self._progress(f"searching {kind}", number, len(ways))
        finally:
            await retriever.close()
        if not rewrites:
            return FollowUpResult(rows)
        unusable = sum(rewrite.question is None for rewrite in rewrites)
        times_ms = [rewrite.ms for rewrite in rewrites]
        return FollowUpResult(rows, RewritingFigures(model, median(times_ms), unusable, rewrites))

    async def _rewrites(self, rewriter: ModelRewriter) -> AsyncIterator[Rewrite]:
        conversations = [one for kind in KINDS.values() for one in kind]
        for number, conversation in enumerate(conversations, start=1):
            yield await rewriter.rewrite(conversation.asked)
            self._progress("rewriting", number, len(conversations))

    async def _finds(
        self,
        retriever: Retriever,
        conversation: Conversation,
        way: FollowUps,
        made: Mapping[tuple[str, ...], str | None],
    ) -> bool:
        messages = [ChatMessage("user", text) for text in conversation.asked]
        earlier = 0 if way is FollowUps.ALONE else EARLIER_QUESTIONS
        question = last_question(messages, earlier, _MOST_CHARACTERS)
        assert question is not None
        text, context = question.text, question.context
        rewritten = made.get(conversation.asked)
        if way is FollowUps.REWRITTEN and rewritten is not None:
            text, context = rewritten, ""
        found = await search_corpus(retriever, DemoCorpus(), text, TOP_K, context=context)
        return any(_is_in(chunk.document_id, conversation.found_in) for chunk in found.docs)


def _is_in(document: str, names: Sequence[str]) -> bool:
    return any(document == name or document.startswith(f"{name}.") for name in names)
