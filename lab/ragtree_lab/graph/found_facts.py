"""Asks a graph questions for their paths."""

from collections.abc import Sequence

from examine.measuring import Progress
from protocol.graph import GraphMode
from ragtree_lab.graph.facts import Facts
from ragtree_lab.workloads.corpus_store import search_corpus
from ragtree_lab.workloads.datasets import Question, Questions
from retriever.retriever import Retriever

MOST_PATHS = 1000
"""Of a search. As many are used as fit the number of tokens of a prompt."""


async def found_facts(
    retriever: Retriever, dataset: Questions, asked: Sequence[Question], progress: Progress
) -> list[Facts]:
    """Return the questions with the paths that a search returns for each. Raises what the retriever raises."""
    found: list[Facts] = []
    for number, question in enumerate(asked):
        progress("finding paths", number, len(asked))
        last = await search_corpus(retriever, dataset, question.question, 1, mode=GraphMode.LOCAL)
        paths = last.graph.paths if last.graph is not None else ()
        found.append(Facts(question.question, question.answers, paths))
    progress("finding paths", len(asked), len(asked))
    return found
