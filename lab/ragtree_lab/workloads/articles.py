"""Longer documents made of a question set's consecutive paragraphs of one article."""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
from blake3 import blake3

from protocol.errors import ConfigError
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import Chunk
from ragtree_lab.workloads.datasets import Dataset, Document


class ArticlePart(msgspec.Struct, frozen=True):
    """Consecutive paragraphs of one article, and their tokens; ``number`` counts the parts of all articles."""

    number: int
    title: str
    text: str
    paragraphs: tuple[str, ...]
    tokens: int

    @property
    def chunk(self) -> Chunk:
        """The part as a retriever would return it."""
        content_hash = blake3(self.text.encode()).hexdigest()
        return Chunk(f"part-{self.number}", f"part-{self.number}", self.title, 0, self.text, content_hash)


def article_parts(dataset: Dataset, count_tokens: Callable[[str], int], most_tokens: int) -> list[ArticlePart]:
    """Return all parts, in the order of the corpus.

    Each has as many paragraphs as fit ``most_tokens``, at least one.
    """
    parts: list[ArticlePart] = []
    for title, texts, ids, tokens in _grouped(dataset.documents(), count_tokens, most_tokens):
        parts.append(ArticlePart(len(parts), title, "\n".join(texts), tuple(ids), tokens))
    return parts


def _grouped(
    documents: Iterator[Document], count_tokens: Callable[[str], int], most_tokens: int
) -> Iterator[tuple[str, list[str], list[str], int]]:
    title: str | None = None
    texts: list[str] = []
    ids: list[str] = []
    tokens = 0
    for document in documents:
        length = count_tokens(document.text)
        if texts and (document.title != title or tokens + length > most_tokens):
            yield title or "", texts, ids, tokens
            texts, ids, tokens = [], [], 0
        title = document.title
        texts.append(document.text)
        ids.append(document.doc_id)
        tokens += length
    if texts:
        yield title or "", texts, ids, tokens


def question_prompts(
    dataset: Dataset, parts: Sequence[ArticlePart], layout: PromptLayout, count: int, max_tokens: int, seed: int
) -> list[Prompt]:
    """Return prompts of questions, each with the part that answers it and the next part of its article.

    The questions are from as few articles as possible, drawn with ``seed``, in random order. So parts repeat, with
    others in between. Raises ConfigError if the set has fewer questions.
    """
    part_of = {paragraph: part for part in parts for paragraph in part.paragraphs}
    asked = [question for question in dataset.questions() if set(question.gold_doc_ids[:1]) & part_of.keys()]
    if len(asked) < count:
        raise ConfigError(f"{dataset.name} has only {len(asked)} questions with a document, not {count}", "prompts")
    draws = random.Random(seed)  # noqa: S311 - a repeatable draw
    titles = sorted({part_of[question.gold_doc_ids[0]].title for question in asked})
    draws.shuffle(titles)
    rank = {title: place for place, title in enumerate(titles)}
    asked.sort(key=lambda question: (rank[part_of[question.gold_doc_ids[0]].title], question.qid))
    chosen = asked[:count]
    draws.shuffle(chosen)
    prompts = []
    for question in chosen:
        part = part_of[question.gold_doc_ids[0]]
        after = parts[part.number + 1] if part.number + 1 < len(parts) else parts[0]
        documents = [part.chunk, after.chunk]
        prompts.append(layout.lay_out([ChatMessage("user", question.question)], documents, max_tokens))
    return prompts
