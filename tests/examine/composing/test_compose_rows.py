"""Rows of ``bench compose``: composed answers against those of full prefills."""

import math

import pytest

from examine.composing.rows import Answered, Way, row_of
from examine.composing.tasks import Probe, share_found
from examine.measuring.engines import Generation
from protocol.generation import PrefillResult, TokenLogprob

ASKED = Probe("Which?", "It is", ("42",), share_found, 4)


def token(token_id: int, **alternatives: float) -> TokenLogprob:
    shares = {int(name[1:]): math.log(share) for name, share in alternatives.items()}
    return TokenLogprob(token_id, shares[token_id], shares)


def answer(text: str, tokens: list[TokenLogprob], composed: int = 0, recomputed: int = 0) -> Generation:
    prefill = PrefillResult(100, 0, 1.0, composed_tokens=composed, recomputed_tokens=recomputed)
    return Generation(1.0, prefill, text, tuple(tokens))


def test_scores_shares_and_agreement():
    full = [answer(" 42", [token(1, t1=0.9), token(2, t2=0.9)]), answer(" 42", [token(1, t1=0.9), token(2, t2=0.9)])]
    came = [
        answer(" 42", [token(1, t1=0.9), token(2, t2=0.9)], 80, 20),
        answer(" 7", [token(3, t3=0.6, t1=0.3), token(2, t2=0.9)], 80, 20),
    ]
    row = row_of("m", "multi-key", Way("query", 0.2), [Answered([ASKED, ASKED], full, came)])
    assert (row.score, row.full_score, row.actual_share, row.questions) == (0.5, 1.0, 0.2, 2)
    # Behind the first token that differs, the answers go on differently, so only three places are compared.
    assert row.top1_agreement == pytest.approx(2 / 3)
    assert row.kl > 0
    # Both questions are about the same chunks, so there is one group, which always has the same mean.
    assert (row.difference.low, row.difference.high) == (-0.5, -0.5)


def test_equal_answers_have_no_divergence():
    same = [answer(" 42", [token(1, t1=0.7, t2=0.2)], 50, 50)]
    row = row_of("m", "multi-key", Way("query", 0.5), [Answered([ASKED], same, same)])
    assert (row.kl, row.top1_agreement, row.difference.low, row.difference.high) == (0.0, 1.0, 0.0, 0.0)
