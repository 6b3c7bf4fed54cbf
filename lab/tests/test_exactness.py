"""Comparison of two runs of the same prompts."""

from examine.measuring.engines import Generation
from protocol.generation import PrefillResult, TokenLogprob
from ragtree_lab.exactness import compare


def answer(*tokens: tuple[int, float]) -> Generation:
    return Generation(1.0, PrefillResult(1, 0, 1.0), "", tuple(TokenLogprob(*token) for token in tokens))


def test_equal_answers_do_not_differ():
    answers = [answer((1, -0.5), (2, -0.25)), answer((3, -1.0))]
    found = compare(answers, answers)
    assert (found.prompts, found.mismatches, found.largest_logprob_difference) == (2, 0, 0.0)


def test_different_token_is_a_mismatch_and_ends_the_logprob_comparison():
    found = compare([answer((1, -0.5), (2, -0.25), (3, -0.1))], [answer((1, -0.75), (9, -3.0), (3, -9.0))])
    assert (found.mismatches, found.mismatch_rate, found.largest_logprob_difference) == (1, 1.0, 0.25)


def test_shorter_answer_is_a_mismatch():
    assert compare([answer((1, -0.5), (2, -0.25))], [answer((1, -0.5))]).mismatches == 1
