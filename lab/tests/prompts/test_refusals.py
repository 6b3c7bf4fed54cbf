"""Which answers count as refusals, and how much an answer repeats itself."""

import pytest

from ragtree_lab.prompts.refusals import refuses
from ragtree_lab.prompts.repetition import repeated_share


@pytest.mark.parametrize(
    "answer",
    [
        "I do not know.",
        "I don\u2019t know the answer to that.",
        "I'm not sure who won the prize.",
        "The documents do not say.",
        "The text provided does not explicitly mention a date. It is about rivers.",
        "There is no information about the founder in the documents.",
        "The name of the company is not mentioned in the documents.",
        "Sorry, we cannot answer this question.",
        "Unknown",
        "Insufficient information.",
    ],
)
def test_a_refusal_is_recognised(answer):
    assert refuses(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Norway won the most medals.",
        "Wilhelm Conrad Röntgen, who did not accept the money.",
        "It was founded in 1901. It has 40 employees. Its turnover is not mentioned.",
        "The Unknown Soldier",
        "He is known for his work.",
    ],
)
def test_an_answer_is_no_refusal(answer):
    assert not refuses(answer)


def test_the_share_of_repeated_4_grams():
    assert repeated_share("one two three") == 0
    assert repeated_share("one two three four five") == 0
    # Of six 4-grams two are new: those of four equal words, and the one with the last.
    assert repeated_share("la la la la la la la la end") == pytest.approx(1 - 2 / 6)
    assert repeated_share("he ran to it " * 5) == pytest.approx(1 - 4 / 17)
