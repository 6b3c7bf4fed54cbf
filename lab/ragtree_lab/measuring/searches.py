"""Searches that are compared question by question."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from examine.measuring import Progress
from protocol.retrieval import SearchKind
from ragtree_lab.workloads.corpus_store import search_corpus
from ragtree_lab.workloads.datasets import Dataset, Question
from retriever.retriever import Retriever

TOP_K = 10
"""Chunks of the searches that `search_of` returns."""

Search = Callable[[str], Awaitable[Sequence[str]]]
"""Maps a question to the documents of the chunks that it finds, best first; a document may occur several times."""


class SearchTimes(NamedTuple):
    """What one search finds for each question, and its times in milliseconds."""

    found: list[Sequence[str]]
    times_ms: list[float]


async def ask_in_turn(
    questions: Sequence[Question], searches: Mapping[str, Search], progress: Progress
) -> dict[str, SearchTimes]:
    """Ask each search every question. The searches take turns, so that the machine's noise affects all alike."""
    asked = {name: SearchTimes([], []) for name in searches}
    for done, question in enumerate(questions, start=1):
        for name, search in searches.items():
            began = time.perf_counter()
            documents = await search(question.question)
            asked[name].times_ms.append((time.perf_counter() - began) * 1000)
            asked[name].found.append(documents)
        progress("searching", done, len(questions))
    return asked


def search_of(retriever: Retriever, dataset: Dataset, kind: SearchKind) -> Search:
    """The retriever's search of one kind over the set's corpus."""

    async def search(question: str) -> Sequence[str]:
        found = await search_corpus(retriever, dataset, question, TOP_K, kind)
        return [chunk.document_id for chunk in found.docs]

    return search
