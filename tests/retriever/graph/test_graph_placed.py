"""Triplets of a chunk, and which sentence states them."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.graph.extractors.given import placed
from retriever.graph.names import NameFinder, name_key

TEXT = "Marie Curie was born in Warsaw. Dr. Smith met her in Warsaw. Marie Curie loved Warsaw."
BORN = Triplet("Marie Curie", "born in", "Warsaw")
MET = Triplet("Dr. Smith", "met in", "Warsaw")

_names = st.text("abAé -", min_size=1, max_size=6)
_triplets = st.builds(Triplet, _names, st.just("r"), _names)


def sentence(statement: Statement, text: str = TEXT) -> str:
    return text[statement.start : statement.end]


def test_a_triplet_belongs_to_the_first_sentence_that_names_both_ends():
    first, second = placed(TEXT, [MET, BORN])
    assert (sentence(first), first.triplets) == ("Marie Curie was born in Warsaw.", (BORN,))
    assert (sentence(second), second.triplets) == ("Dr. Smith met her in Warsaw.", (MET,))
    assert first.names == ("Marie Curie", "Warsaw")


def test_a_triplet_that_no_sentence_states_belongs_to_the_whole_chunk():
    apart = Triplet("Smith", "knows", "Marie Curie")
    unknown = Triplet("Pierre", "married", "Marie")
    (whole,) = placed(TEXT, [apart, unknown])
    assert whole == Statement(0, len(TEXT), ("Smith", "Marie Curie", "Pierre", "Marie"), (apart, unknown))


def test_a_chunk_of_one_sentence_is_stated_once():
    text = "Paris is in France."
    (only,) = placed(text, [Triplet("Paris", "in", "France"), Triplet("Paris", "in", "Europe")])
    assert (only.start, only.end, len(only.triplets)) == (0, len(text), 2)


def test_spellings_differ_and_words_are_whole():
    text = "The NIELS-BOHR institute. Parisians like it."
    (first,) = placed(text, [Triplet("the Niels Bohr", "has", "Institute")])
    assert sentence(first, text) == "The NIELS-BOHR institute."
    (whole,) = placed(text, [Triplet("Paris", "likes", "it")])
    assert sentence(whole, text) == text


def test_equal_triplets_are_stated_once_and_none_states_nothing():
    (first,) = placed(TEXT, [BORN, BORN])
    assert first.triplets == (BORN,)
    assert placed(TEXT, []) == []
    assert placed("", []) == []


@given(st.text("abAé .\n-", max_size=60), st.lists(_triplets, max_size=8))
def test_no_triplet_is_lost_and_each_stands_where_its_ends_do(text, triplets):
    statements = placed(text, triplets)
    assert sorted(triplet for statement in statements for triplet in statement.triplets) == sorted(set(triplets))
    assert [statement[:2] for statement in statements] == sorted({statement[:2] for statement in statements})
    for statement in statements:
        here = text[statement.start : statement.end]
        for triplet in statement.triplets:
            assert {triplet.head, triplet.tail} <= set(statement.names)
            ends = {name_key(triplet.head), name_key(triplet.tail)}
            assert here == text or NameFinder(ends).found_in(here) == ends
