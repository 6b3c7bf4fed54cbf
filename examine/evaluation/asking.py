"""Asks all questions, several at a time if wanted."""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from examine.evaluation.answer import Answer, Ask, NoAnswer, answer_to
from examine.evaluation.question_file import NumberedQuestion
from examine.evaluation.scores import Scores, score
from protocol.errors import RagtreeError
from protocol.plans import Reuse


class Mode(NamedTuple):
    """A way in which every question is asked. ``reuse`` is left to the stack if it is None."""

    name: str
    reuse: Reuse | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A question asked in one mode: its answer and scores, or the ``error`` in their place.

    ``line`` is its number in the file, and ``answers`` and ``document_ids`` are what the file says.
    """

    line: int
    mode: str
    question: str
    answers: tuple[str, ...]
    document_ids: tuple[str, ...]
    error: str | None = None
    answer: Answer | None = None
    scores: Scores | None = None


class Asker:
    """Asks questions with ``concurrency`` threads. ``body`` has the fields that all queries share."""

    def __init__(self, ask: Ask, body: dict[str, Any], concurrency: int) -> None:
        self._ask = ask
        self._body = body
        self._concurrency = concurrency

    def rows(self, questions: Sequence[NumberedQuestion], modes: Sequence[Mode]) -> Iterator[Row]:
        """Yield a row for each question and mode, in the order of their ends. A failing question never ends it.

        The modes of a question follow each other in one thread, so that the machine's noise affects all alike.
        Who stops iterating ends the threads after their current queries.
        """
        waiting: SimpleQueue[NumberedQuestion | None] = SimpleQueue()
        for question in questions:
            waiting.put(question)
        rows: SimpleQueue[Row] = SimpleQueue()
        stopped = threading.Event()
        for _ in range(self._concurrency):
            waiting.put(None)
            # A thread that waits for a reply must not keep an interrupted command alive.
            threading.Thread(target=self._work, args=(waiting, modes, rows, stopped), daemon=True).start()
        try:
            for _ in range(len(questions) * len(modes)):
                yield rows.get()
        finally:
            stopped.set()

    def _work(
        self,
        waiting: "SimpleQueue[NumberedQuestion | None]",
        modes: Sequence[Mode],
        rows: SimpleQueue[Row],
        stopped: threading.Event,
    ) -> None:
        while (question := waiting.get()) is not None:
            for mode in modes:
                if stopped.is_set():
                    return
                rows.put(self._row(question, mode))

    def _row(self, question: NumberedQuestion, mode: Mode) -> Row:
        asked = question.asked
        row = Row(
            line=question.line,
            mode=mode.name,
            question=asked.question,
            answers=asked.answers,
            document_ids=asked.document_ids,
        )
        body = {**self._body, "query": asked.question} | ({"reuse": mode.reuse.value} if mode.reuse else {})
        try:
            answer = answer_to(self._ask, body)
            return msgspec.structs.replace(row, answer=answer, scores=score(asked, answer))
        except (RagtreeError, NoAnswer) as error:
            return msgspec.structs.replace(row, error=str(error))
        except Exception as error:  # anything else a reply can cause is this question's failure, not the run's
            return msgspec.structs.replace(row, error=f"{type(error).__name__}: {error}")
