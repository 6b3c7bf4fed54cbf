"""Triplets of language models before a graph has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.graph import Triplet
from retriever.graph.extractors.llm.answer import tidied
from retriever.graph.names import LONGEST_NAME, name_key

GOOD = Triplet("Marie Curie", "was born in", "Warsaw")


def test_names_and_relations_are_tidy():
    assert tidied([Triplet(' "Marie\n Curie" ', "was  born in", "\u201cWarsaw\u201d")]) == [GOOD]


@pytest.mark.parametrize(
    "triplet",
    [
        Triplet("", "was born in", "Warsaw"),
        Triplet("...", "was born in", "Warsaw"),
        Triplet("Marie Curie", "", "Warsaw"),
        Triplet("Marie Curie", " \n", "Warsaw"),
        Triplet("Marie Curie", "is", "the MARIE CURIE!"),
        Triplet("x" * (LONGEST_NAME + 1), "is in", "Warsaw"),
        Triplet("x" + "." * LONGEST_NAME, "is in", "Warsaw"),
        Triplet("Marie Curie", "x" * (LONGEST_NAME + 1), "Warsaw"),
        Triplet("Marie\ud800 Curie", "was born in", "Warsaw"),
        Triplet("Marie Curie", "was\0born in", "Warsaw"),
        Triplet("Marie Curie", "was born in", "War\x1bsaw"),
    ],
)
def test_what_names_nothing_is_left_out(triplet: Triplet):
    assert tidied([triplet, GOOD]) == [GOOD]


def test_each_fact_is_there_once_in_any_spelling():
    assert tidied([GOOD, Triplet("marie curie", "Was born in", "WARSAW"), GOOD]) == [GOOD]
    other = GOOD._replace(relation="lived in")
    assert tidied([GOOD, other]) == [GOOD, other]


def test_a_chunk_has_at_most_64():
    many = [Triplet(f"Person {number}", "knows", "Marie Curie") for number in range(10_000)]
    assert tidied(many) == many[:64]


@given(st.lists(st.builds(Triplet, *[st.text() | st.text("ab \ud800", max_size=3)] * 3)))
def test_everything_that_is_left_can_be_stored(triplets):
    for triplet in tidied(triplets):
        assert all(part.encode() and len(part) <= LONGEST_NAME for part in triplet)
        assert name_key(triplet.head) != name_key(triplet.tail)
