"""Streams ask each question once, with the configured popularity of documents."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.workloads.articles import ArticlePart
from ragtree_lab.workloads.popularity import Skew, request_counts
from ragtree_lab.workloads.prompt_streams import (
    QuestionStream,
    RepeatingStream,
    own_questions,
    poisson,
    popular_documents,
)
from ragtree_lab.workloads.retrieved_prompts import AskedQuestion

DOCUMENTS = 1000
TOP = 30
QUESTION = Prompt((Segment(SegmentKind.QUESTION, "?", (1, 2)),))


class ManyQuestions:
    """A thousand documents of 100 tokens. The first ones have 60 questions each, the last ones 3."""

    def __init__(self) -> None:
        self.documents = [
            ArticlePart(number, "title", f"text {number}", (f"paragraph-{number}",), 100) for number in range(DOCUMENTS)
        ]
        self.by_first = {
            number: [
                AskedQuestion(f"question {number}.{place}", (number, (number + place) % DOCUMENTS))
                for place in range(60 if number < 2 * TOP else 3)
            ]
            for number in range(DOCUMENTS)
        }

    def prompt(self, asked):
        documents = [Segment(SegmentKind.DOCUMENT, str(number), (1,) * 100) for number in asked.documents]
        return Prompt((*documents, Segment(SegmentKind.QUESTION, asked.question, (1, 2))))

    def all(self):
        return (self.prompt(asked) for those in self.by_first.values() for asked in those)

    def draw(self, seed):
        draws = random.Random(seed)
        while True:
            yield self.prompt(self.by_first[draws.randrange(3)][0])


def test_the_most_popular_documents_get_their_share_and_no_question_repeats():
    asked = popular_documents(ManyQuestions(), 2000, 0)
    assert len({one.question for one in asked}) == 2000
    requests = sorted(Counter(one.documents[0] for one in asked).values(), reverse=True)
    assert sum(requests[:TOP]) / 2000 == pytest.approx(0.6, abs=0.02)
    # The skew does not end behind the top.
    assert requests[TOP] > requests[200]


def test_popularity_is_the_same_from_the_first_question_to_the_last():
    asked = popular_documents(ManyQuestions(), 2000, 0)
    top = {number for number, _ in Counter(one.documents[0] for one in asked).most_common(TOP)}
    for begin in range(0, 2000, 500):
        assert sum(one.documents[0] in top for one in asked[begin : begin + 500]) == pytest.approx(300, abs=45)


def test_the_sets_own_popularity_is_kept():
    asked = own_questions(ManyQuestions(), 3000, 0)
    assert len({one.question for one in asked}) == 3000
    about_first = sum(one.documents[0] < 2 * TOP for one in asked)
    assert about_first / 3000 == pytest.approx(3600 / (3600 + 3 * (DOCUMENTS - 60)), abs=0.03)


def test_without_a_number_there_are_as_many_questions_as_the_popularity_allows():
    # The top 30 of 1,000 documents have 60 questions each, and get 60 % of the requests.
    asked = popular_documents(ManyQuestions(), None, 0)
    assert len({one.question for one in asked}) == 3000
    with pytest.raises(ConfigError, match="3001 requests need 1801 questions"):
        popular_documents(ManyQuestions(), 3001, 0)
    assert len(own_questions(ManyQuestions(), None, 0)) == 60 * 60 + 940 * 3


def test_a_stream_counts_the_prompts_that_are_left():
    stream = QuestionStream(ManyQuestions(), own_questions(ManyQuestions(), 20, 0), 0)
    stream.take(3)
    assert stream.left == 17
    stream.arrivals(1.0, 10)
    assert stream.left == 7
    assert RepeatingStream(ManyQuestions(), 0).left is None


@pytest.mark.parametrize("asks", [popular_documents, own_questions])
def test_equal_seeds_ask_the_same(asks):
    assert asks(ManyQuestions(), 500, 1) == asks(ManyQuestions(), 500, 1)
    assert asks(ManyQuestions(), 500, 1) != asks(ManyQuestions(), 500, 2)


def test_too_few_questions_are_refused_with_what_to_change():
    with pytest.raises(ConfigError, match=r"5000 requests need 3000 .* 30 most asked .* 1800 .* use fewer requests"):
        popular_documents(ManyQuestions(), 5000, 0)
    with pytest.raises(ConfigError, match="there are 6420 questions, not 7000"):
        own_questions(ManyQuestions(), 7000, 0)


def test_a_stream_is_taken_in_order_and_ends():
    asked = popular_documents(ManyQuestions(), 100, 0)
    stream = QuestionStream(ManyQuestions(), asked, 0)
    taken = [*stream.take(60), *(arrival.prompt for arrival in stream.arrivals(2.0, 40))]
    assert [prompt.segments[-1].key for prompt in taken] == [one.question for one in asked]
    with pytest.raises(ConfigError, match="stream of 100 questions has ended"):
        stream.take(1)


def test_document_tokens_count_equal_prefixes_once():
    asked = [AskedQuestion("a", (1, 2)), AskedQuestion("b", (1, 3)), AskedQuestion("c", (1, 2))]
    assert QuestionStream(ManyQuestions(), asked, 0).document_tokens == 300


def test_whole_prompts_repeat_without_end():
    stream = RepeatingStream(ManyQuestions(), 0)
    assert len({prompt.segments[-1].key for prompt in stream.take(100)}) == 3
    assert stream.document_tokens == 100 * (DOCUMENTS + 60 * 60 + 3 * (DOCUMENTS - 60))


@given(st.integers(1, 300), st.floats(0.01, 100), st.integers(0, 9))
def test_arrivals_have_exactly_the_offered_rate(count, rate, seed):
    arrivals = poisson([QUESTION] * count, rate, seed)
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(count / rate)


def test_arrivals_at_another_rate_have_the_same_pattern():
    slow, fast = ([arrival.at_s for arrival in poisson([QUESTION] * 50, rate, 0)] for rate in (1.0, 4.0))
    assert slow == pytest.approx([4 * at for at in fast])


@given(
    st.lists(st.integers(1, 80), min_size=100, max_size=400),
    st.integers(0, 400),
    st.integers(10, 1000),
    st.integers(0, 5),
)
def test_no_document_gets_more_requests_than_it_has_questions(questions, silent, requests, seed):
    questions.sort(reverse=True)
    documents = len(questions) + silent
    try:
        counts = request_counts(questions, requests, Skew(documents, 0.03, 0.6), random.Random(seed))
    except ConfigError:
        top = max(1, round(documents * 0.03))
        assert sum(questions[:top]) < 0.6 * requests or sum(questions) < requests
        return
    assert sum(counts) == requests
    assert all(count <= most for count, most in zip(counts, questions, strict=True))
    top = max(1, round(documents * 0.03))
    assert sum(counts[:top]) >= 0.6 * requests - 1
