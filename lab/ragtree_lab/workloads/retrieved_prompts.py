"""Prompts of real questions with really retrieved documents."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from protocol.errors import ConfigError
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt
from ragtree_lab.workloads.articles import ArticlePart
from ragtree_lab.workloads.datasets import Question
from ragtree_lab.workloads.popularity import PAPER_REQUESTS_SHARE, PAPER_TOP_SHARE, cumulated, zipf_weights
from ragtree_lab.workloads.question_sets import QuestionRetrieval, QuestionSet

_CHUNKS_PER_DOCUMENT = 5
"""Chunks retrieved per question and document. A question's documents are the first ones that its chunks are in."""


class AskedQuestion(msgspec.Struct, frozen=True):
    """A question and the numbers of its retrieved documents, best first."""

    question: str
    documents: tuple[int, ...]


class RetrievedPrompts:
    """Questions of a set by their best document, and prompts made of them.

    A document is a part of an article. A question's documents are the first ``top_k`` parts that its chunks, best
    first, are in. Questions whose chunks are in fewer parts are left out.
    """

    def __init__(self, parts: Sequence[ArticlePart], layout: PromptLayout, top_k: int, max_tokens: int) -> None:
        self.documents = parts
        self.by_first: dict[int, list[AskedQuestion]] = defaultdict(list)
        self._layout = layout
        self._top_k = top_k
        self._max_tokens = max_tokens
        self._part_of = {paragraph: part.number for part in parts for paragraph in part.paragraphs}

    def retrieve(
        self, questions: QuestionSet, retrieval: QuestionRetrieval, count: int, seed: int, popular_first: bool = False
    ) -> None:
        """Search for ``count`` questions of the set, drawn with ``seed``, or all.

        With ``popular_first``, half of them are questions about the documents that answer the most, so that these get
        enough requests. Do not call it inside a running event loop.
        """
        order: list[tuple[int, Question]] = list(enumerate(questions.questions()))
        random.Random(seed).shuffle(order)  # noqa: S311 - a repeatable draw
        if popular_first:
            order = self._popular_first(order, count // 2)
        asked = order[:count]
        found = retrieval.find(questions, asked, self._top_k * _CHUNKS_PER_DOCUMENT)
        for place, question in asked:
            documents = self._documents([chunk.id.rpartition("#")[0] for chunk in found[place]])
            if len(documents) == self._top_k:
                self.by_first[documents[0]].append(AskedQuestion(question.question, documents))
        if not self.by_first:
            raise ConfigError(f"retrieval finds no {self._top_k} documents for any question of {questions.name}")

    def prompt(self, asked: AskedQuestion) -> Prompt:
        """Return the question's prompt."""
        chunks = [self.documents[number].chunk for number in asked.documents]
        return self._layout.lay_out([ChatMessage("user", asked.question)], chunks, self._max_tokens)

    def all(self) -> Iterator[Prompt]:
        """Yield the prompts of all questions, once each."""
        return (self.prompt(asked) for those in self.by_first.values() for asked in those)

    def draw(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts without end. Their best documents have the paper's skew, and whole prompts repeat."""
        return map(self.prompt, self._drawn(random.Random(f"paper {seed}")))  # noqa: S311 - repeatable

    def draw_novel_pairs(self, count: int, seed: int, seconds: int | None = None) -> Iterator[Prompt]:
        """Yield ``count`` prompts by the paper's skew, each with a second document that is new behind the first.

        The second document is drawn from ``seconds`` documents, by default from all. Raises ConfigError if these are
        too few.
        """
        draws = random.Random(f"pairs {seed}")  # noqa: S311 - a repeatable draw
        pool: Sequence[int] = range(len(self.documents))
        if seconds is not None:
            pool = draws.sample(pool, min(seconds, len(pool)))
        followed: dict[int, set[int]] = defaultdict(set)
        for asked in islice(self._drawn(draws), count):
            first = asked.documents[0]
            left = [second for second in pool if second != first and second not in followed[first]]
            if not left:
                raise ConfigError(f"{len(pool)} documents are too few for {count} pairs that are all new", "pairs")
            second = draws.choice(left)
            followed[first].add(second)
            yield self.prompt(AskedQuestion(asked.question, (first, second)))

    def _drawn(self, draws: random.Random) -> Iterator[AskedQuestion]:
        firsts = sorted(self.by_first)
        draws.shuffle(firsts)
        sums = cumulated(zipf_weights(len(firsts), PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE))
        while True:
            (first,) = draws.choices(firsts, cum_weights=sums)
            yield draws.choice(self.by_first[first])

    def _popular_first(self, order: Sequence[tuple[int, Question]], count: int) -> list[tuple[int, Question]]:
        """Move ``count`` questions about the documents with the most questions to the front."""
        about = [
            self._part_of.get(question.gold_doc_ids[0], -1) if question.gold_doc_ids else -1 for _, question in order
        ]
        questions_of = Counter(part for part in about if part >= 0)
        # Sorting is stable, so questions about equally popular documents stay in their random order.
        ranked = sorted(range(len(order)), key=lambda place: -questions_of[about[place]])
        front = set(ranked[:count])
        return [order[place] for place in (*ranked[:count], *(at for at in range(len(order)) if at not in front))]

    def _documents(self, paragraphs: Sequence[str]) -> tuple[int, ...]:
        numbers = dict.fromkeys(self._part_of[paragraph] for paragraph in paragraphs if paragraph in self._part_of)
        return tuple(islice(numbers, self._top_k))


class SeenDocuments:
    """Counts the KV tokens of the documents of prompts. Equal prefixes count once."""

    def __init__(self) -> None:
        self.tokens = 0
        self._paths: set[tuple[str, ...]] = set()

    def add(self, prompt: Prompt) -> None:
        """Count what is new in a prompt."""
        path: tuple[str, ...] = ()
        for segment in prompt.prefix:
            path += (segment.key,)
            if path not in self._paths:
                self._paths.add(path)
                self.tokens += len(segment.token_ids)


def document_tokens(prompts: Iterable[Prompt]) -> int:
    """Return the KV tokens of the prompts' documents; equal prefixes count once."""
    seen = SeenDocuments()
    for prompt in prompts:
        seen.add(prompt)
    return seen.tokens
