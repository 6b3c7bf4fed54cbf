"""Questions with retrieved chunks: some that hold the answer, and some that do not.

An answerable question has the best chunks of its search, and one of them holds a right answer. A question becomes
unanswerable when the chunks that hold its answer are left out and the next best ones take their places (negative
rejection of RGB, Chen et al., 2024). Where a set says itself which questions its documents do not answer, those are
taken, with the best chunks of their search.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from examine.evaluation.scores import holds_answer
from examine.measuring import Progress
from protocol.errors import ConfigError
from protocol.retrieval import Chunk
from ragtree_lab.workloads.corpus_store import ingest_corpus, search_corpus
from ragtree_lab.workloads.datasets import Question, Questions
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings

UNANSWERABLE = "Unable to answer"
"""The answer of questions whose set says that its documents do not answer them."""

_FOUND_PER_SHOWN = 3
"""Chunks that are searched for, for each that is shown: some hold the answer, and are left out."""


class AskedQuestion(NamedTuple):
    """A question and what is shown with it. No right ``answers`` means that the chunks hold none."""

    text: str
    chunks: tuple[Chunk, ...]
    answers: tuple[str, ...]


class QuestionDraw:
    """Draws English questions, repeatable by ``seed``, with ``top_k`` chunks each.

    The retriever keeps its corpora in ``folder``. ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, folder: Path, top_k: int, seed: int, progress: Progress) -> None:
        self._settings = settings
        self._folder = folder
        self._top_k = top_k
        self._seed = seed
        self._progress = progress

    async def draw(self, dataset: Questions, count: int, skip: int) -> list[AskedQuestion]:
        """Return up to ``count`` answerable and as many unanswerable questions, in turn, after ``skip`` of each.

        Raises ConfigError if the set has none left, and what the retriever raises.
        """
        draws = random.Random(f"prompts {self._seed}")  # noqa: S311 - a repeatable draw
        questions = [one for one in dataset.questions() if one.answers and one.lang in ("", "en")]
        draws.shuffle(questions)
        marked = [one for one in questions if _is_marked(one)]
        others = [one for one in questions if not _is_marked(one)]
        # No question is asked in both ways, so that the two kinds are independent.
        answerable, rest = (others, marked) if marked else (others[::2], others[1::2])
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            await ingest_corpus(retriever, dataset, self._progress)
            drawn = [
                await self._drawn(retriever, dataset, some, without, count, skip)
                for some, without in ((answerable, False), (rest, True))
            ]
        finally:
            await retriever.close()
        if not any(drawn):
            raise ConfigError(f"the set {dataset.name} has no question left", "sets")
        return list(_in_turn(*drawn))

    async def _drawn(
        self,
        retriever: Retriever,
        dataset: Questions,
        questions: Sequence[Question],
        without: bool,
        count: int,
        skip: int,
    ) -> list[AskedQuestion]:
        step = f"retrieving for {dataset.name}, {'without' if without else 'with'} answers"
        drawn: list[AskedQuestion] = []
        for question in questions:
            self._progress(step, max(0, len(drawn) - skip), count)
            found = (await search_corpus(retriever, dataset, question.question, _FOUND_PER_SHOWN * self._top_k)).docs
            asked = self._without_answer(question, found) if without else self._with_answer(question, found)
            if asked is not None:
                drawn.append(asked)
            if len(drawn) == skip + count:
                break
        self._progress(step, count, count)
        return drawn[skip:]

    def _with_answer(self, question: Question, found: Sequence[Chunk]) -> AskedQuestion | None:
        shown = tuple(found[: self._top_k])
        if any(holds_answer(chunk.text, question.answers) for chunk in shown):
            return AskedQuestion(question.question, shown, question.answers)
        return None

    def _without_answer(self, question: Question, found: Sequence[Chunk]) -> AskedQuestion | None:
        left = (
            chunk
            for chunk in found
            if chunk.document_id not in question.gold_doc_ids and not holds_answer(chunk.text, question.answers)
        )
        shown = tuple(found[: self._top_k] if _is_marked(question) else islice(left, self._top_k))
        return AskedQuestion(question.question, shown, ()) if len(shown) == self._top_k else None


def _is_marked(question: Question) -> bool:
    return UNANSWERABLE in question.answers


def _in_turn(*drawn: Sequence[AskedQuestion]) -> Iterator[AskedQuestion]:
    """Alternate, so that a run that is ended early has asked of both."""
    for place in range(max(map(len, drawn))):
        for some in drawn:
            yield from some[place : place + 1]
