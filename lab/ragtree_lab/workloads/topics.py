"""Questions in topics, with the chunks that real retrieval finds for them, so that documents repeat.

A topic starts with a random question. Next come the questions that the documents found for it answer, then those that
the documents found for these answer, and so on until the topic is full; then another topic starts. Users too ask about
related things. In the end all questions are shuffled.

Each question appears once. A repeated question would have the same documents in the same order, which every strategy
hits, and would add nothing to the scores. Without topics, questions over a large corpus hardly ever share a document.
If questions do not name the documents that answer them, each is a topic of its own.
"""

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from examine.measuring import Progress
from protocol.errors import ConfigError
from protocol.retrieval import Chunk
from ragtree_lab.workloads.corpus_store import ingest_corpus, search_corpus
from ragtree_lab.workloads.datasets import Question, Questions
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings


class FoundQuestion(msgspec.Struct, frozen=True):
    """A question and its retrieved chunks, best first, with their search scores."""

    question: Question
    chunks: tuple[Chunk, ...]
    scores: tuple[float, ...] = ()


class TopicDraw:
    """Draws questions in topics of ``topic_questions`` each, repeatable by ``seed``, and retrieves their chunks.

    The retriever keeps its corpora in ``folder``. ``progress`` is called with (step, done, total).
    """

    def __init__(
        self,
        settings: RetrieverSettings,
        folder: Path,
        top_k: int,
        topic_questions: int,
        seed: int,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._top_k = top_k
        self._topic_questions = topic_questions
        self._seed = seed
        self._progress = progress

    async def draw(self, dataset: Questions, count: int) -> list[FoundQuestion]:
        """Return ``count`` answerable questions of the set, or all, with up to ``top_k`` chunks each.

        Raises ConfigError if no question has an answer, and what the retriever raises.
        """
        draws = random.Random(f"topics {self._seed}")  # noqa: S311 - a repeatable draw
        questions = [question for question in dataset.questions() if question.answers]
        if not questions:
            raise ConfigError(f"no question of {dataset.name!r} has an answer", "sets")
        draws.shuffle(questions)
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            await ingest_corpus(retriever, dataset, self._progress)
            drawn = await self._in_topics(retriever, dataset, questions, min(count, len(questions)))
        finally:
            await retriever.close()
        draws.shuffle(drawn)
        return drawn

    async def _in_topics(
        self, retriever: Retriever, dataset: Questions, questions: Sequence[Question], count: int
    ) -> list[FoundQuestion]:
        answered_by: dict[str, list[int]] = defaultdict(list)
        for place, question in enumerate(questions):
            for document in question.gold_doc_ids:
                answered_by[document].append(place)
        drawn: dict[int, FoundQuestion] = {}
        for first in range(len(questions)):
            topic = deque([first])
            most = min(count, len(drawn) + self._topic_questions)
            while topic and len(drawn) < most:
                place = topic.popleft()
                if place in drawn:
                    continue
                question = questions[place]
                found = await search_corpus(retriever, dataset, question.question, self._top_k)
                drawn[place] = FoundQuestion(question, found.docs, found.scores)
                self._progress(f"retrieving for {dataset.name}", len(drawn), count)
                for chunk in found.docs:
                    topic.extend(answered_by[chunk.document_id])
        return list(drawn.values())
