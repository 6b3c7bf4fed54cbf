"""Prompts of retrieved documents. Novel pairs do not repeat, and token counts match those that a cache keeps."""

from itertools import islice

import pytest

from protocol.errors import ConfigError
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk
from ragtree_lab.workloads.articles import ArticlePart
from ragtree_lab.workloads.datasets import Question
from ragtree_lab.workloads.retrieved_prompts import RetrievedPrompts, document_tokens

PARTS = [ArticlePart(number, "title", f"text {number}", (f"paragraph-{number}",), 10) for number in range(30)]


class WordLayout:
    """A layout with one token per character."""

    def lay_out(self, messages, chunks: list[Chunk], _max_tokens: int) -> Prompt:
        documents = [Segment(SegmentKind.DOCUMENT, chunk.chunk_id, tuple(map(ord, chunk.text))) for chunk in chunks]
        question = Segment(SegmentKind.QUESTION, messages[0].content, (1,))
        return Prompt((*documents, question))


class ScriptedSet:
    """Twenty questions."""

    name = "scripted"

    def questions(self):
        return [Question(str(number), f"question {number}", ["answer"]) for number in range(20)]


class ScriptedRetrieval:
    """Finds the part with the question's number and the next one."""

    def find(self, _questions, asked, _count):
        class Found:
            def __init__(self, number: int) -> None:
                self.id = f"paragraph-{number}#0"

        return {place: (Found(place), Found(place), Found(place + 1)) for place, _ in asked}


@pytest.fixture
def drawn():
    prompts = RetrievedPrompts(PARTS, WordLayout(), top_k=2, max_tokens=1)
    prompts.retrieve(ScriptedSet(), ScriptedRetrieval(), 20, 0)
    return prompts


def keys(prompt: Prompt) -> tuple[str, ...]:
    return tuple(segment.key for segment in prompt.documents)


def test_question_follows_its_retrieved_documents(drawn):
    for prompt in drawn.all():
        number = int(prompt.segments[-1].key.split()[-1])
        assert keys(prompt) == (f"part-{number}", f"part-{number + 1}")


def test_equal_seeds_draw_equal_prompts(drawn):
    first, again = (list(islice(drawn.draw(3), 50)) for _ in range(2))
    assert first == again
    assert first != list(islice(drawn.draw(4), 50))


def test_novel_pairs_are_distinct_but_repeat_first_documents(drawn):
    pairs = [keys(prompt) for prompt in drawn.draw_novel_pairs(29, 0)]
    assert len(set(pairs)) == 29
    assert all(first != second for first, second in pairs)
    assert len({first for first, _ in pairs}) < 15


def test_more_pairs_than_possible_are_refused(drawn):
    with pytest.raises(ConfigError, match="30 documents are too few"):
        list(drawn.draw_novel_pairs(1000, 0))


def test_second_documents_of_novel_pairs_are_drawn_from_as_many_as_asked_for(drawn):
    pairs = [keys(prompt) for prompt in drawn.draw_novel_pairs(29, 0, seconds=20)]
    assert len(set(pairs)) == 29
    assert len({second for _, second in pairs}) <= 20
    with pytest.raises(ConfigError, match="2 documents are too few"):
        list(drawn.draw_novel_pairs(100, 0, seconds=2))


def test_tokens_are_counted_once_per_distinct_prefix():
    one, other, asked = (Segment(SegmentKind.DOCUMENT, key, (1,) * 10) for key in ("one", "other", "asked"))
    question = Segment(SegmentKind.QUESTION, "?", (1, 2))
    prompts = [Prompt((one, other, question)), Prompt((one, asked, question)), Prompt((other, question))]
    assert document_tokens(prompts) == 40


def test_half_of_the_questions_may_be_about_the_documents_with_the_most():
    asked = []

    class Retrieval(ScriptedRetrieval):
        def find(self, questions, given, count):
            asked.extend(question.question for _, question in given)
            return super().find(questions, given, count)

    class Unequal(ScriptedSet):
        """Questions 0 to 9 are about one document, and each of the others about its own."""

        def questions(self):
            return [
                Question(str(number), f"question {number}", (f"paragraph-{0 if number < 10 else number}",))
                for number in range(20)
            ]

    for popular_first in (True, False):
        asked.clear()
        RetrievedPrompts(PARTS, WordLayout(), 2, 1).retrieve(Unequal(), Retrieval(), 16, 0, popular_first)
        assert len(set(asked)) == 16
        front = sum(int(question.split()[-1]) < 10 for question in asked[:8])
        assert front == 8 if popular_first else front < 8
