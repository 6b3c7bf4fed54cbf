"""Scores of one answer, against values computed by hand."""

import math

import pytest
from scripted_stack import completed, reply, stream, timed_out

from examine.evaluation.answer import NoAnswer, answer_to
from examine.evaluation.question_file import AskedQuestion
from examine.evaluation.scores import score


def scored(asked: AskedQuestion, **answer):
    return score(asked, answer_to(lambda _: stream(reply(**answer)), {}))


def test_retrieval_counts_documents_by_their_best_chunk():
    scores = scored(AskedQuestion("?", document_ids=("a", "b")), text="", found=["x", "x", "a", "y", "a"])
    assert scores.recall == 0.5
    assert scores.reciprocal_rank == 0.5
    ideal = 1 + 1 / math.log2(3)
    assert scores.ndcg_at_10 == pytest.approx((1 / math.log2(3)) / ideal)
    assert scores.exact_match is None


def test_the_first_rank_is_the_best():
    scores = scored(AskedQuestion("?", document_ids=("a",)), text="", found=["a", *(f"x{n}" for n in range(15))])
    assert (scores.recall, scores.reciprocal_rank, scores.ndcg_at_10) == (1, 1, 1)


def test_recall_is_over_all_results_and_ndcg_over_ten():
    scores = scored(AskedQuestion("?", document_ids=("a",)), text="", found=[*(f"x{n}" for n in range(15)), "a"])
    assert (scores.recall, scores.reciprocal_rank, scores.ndcg_at_10) == (1, 1 / 16, 0)


def test_nothing_found_scores_nothing_and_cites_nothing():
    scores = scored(AskedQuestion("?", document_ids=("a",)), text="")
    assert (scores.recall, scores.reciprocal_rank, scores.ndcg_at_10, scores.citation_precision) == (0, 0, 0, None)


def test_documents_that_the_answer_rests_on_count_once_as_citations():
    scores = scored(AskedQuestion("?", document_ids=("a", "z")), text="", found=["a", "a", "b", "z"], dropped=1)
    assert scores.citation_precision == 0.5


def test_an_answer_that_rests_on_nothing_has_no_citation_precision():
    assert scored(AskedQuestion("?", document_ids=("a",)), text="", found=["a"], cited=()).citation_precision is None


def test_answers_are_scored_by_the_best_right_one():
    scores = scored(AskedQuestion("?", answers=("elsewhere", "the Big red cat")), text="A red cat, big.")
    assert scores.exact_match == 0
    assert scores.holds_answer == 0
    assert scores.f1 == 1
    assert scores.rouge_l == pytest.approx(2 / 3)
    assert scores.recall is None
    assert scored(AskedQuestion("?", answers=("Red cat",)), text="the red cat!").exact_match == 1


def test_times_are_the_clients_and_tokens_the_replys():
    answer = answer_to(lambda _: stream(reply("x", cached=30, composed=20)), {})
    assert 0 < answer.ttft_ms <= answer.total_ms
    assert (answer.cached_tokens, answer.composed_tokens, answer.computed_tokens) == (30, 20, 50)
    assert answer_to(lambda _: stream(reply("")), {}).ttft_ms is None


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "ended early"),
        ([{"type": "query.created"}], "ended early"),
        ([timed_out()], "timeout"),
        ([{"type": "query.failed", "error": {"message": "no engine"}}], "no engine"),
        ([{"type": "query.failed"}], "the query failed"),
        ([completed({"output_text": "x"})], "not one of this API"),
        ([{"type": "query.completed"}], "not one of this API"),
    ],
)
def test_a_stream_without_an_answer_says_why(events, why):
    with pytest.raises(NoAnswer, match=why):
        answer_to(lambda _: iter(events), {})
