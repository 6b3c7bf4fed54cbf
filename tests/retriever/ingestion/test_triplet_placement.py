"""Which chunks of a document state its triplets."""

import time

from hypothesis import given
from hypothesis import strategies as st

from protocol.graph import Triplet
from retriever.graph.names import NameFinder, name_key
from retriever.ingestion.chunk_preparer import MOST_CHUNKS, placed_triplets

CHUNKS = ["Marie Curie", "Pierre met Marie Curie.", "Warsaw", "MARIE CURIE was born in Warsaw.", "Marie Curie, Warsaw"]
_names = st.text("abé -", min_size=1, max_size=5)


def triplets_by_chunk(chunks: list[str], triplets: list[Triplet]) -> list[tuple[Triplet, ...]]:
    stated = placed_triplets(chunks, triplets)
    assert all(0 <= position < len(chunks) for position in stated)
    return [stated.get(position, ()) for position in range(len(chunks))]


def chunks_of(triplet: Triplet, chunks: list[str] = CHUNKS) -> list[int]:
    return [number for number, stated in enumerate(triplets_by_chunk(chunks, [triplet])) if triplet in stated]


def test_each_chunk_states_what_it_names_both_ends_of():
    assert chunks_of(Triplet("Marie Curie", "born in", "Warsaw")) == [3, 4]
    assert chunks_of(Triplet("the pierre", "met", "Marie Curie")) == [1]


def test_a_triplet_whose_ends_stand_apart_is_stated_by_the_first_chunk_that_names_one():
    assert chunks_of(Triplet("Warsaw", "home of", "Pierre")) == [1]
    assert chunks_of(Triplet("London", "twin of", "Warsaw")) == [2]


def test_a_triplet_that_nothing_names_is_stated_by_the_first_chunk():
    assert chunks_of(Triplet("London", "capital of", "England")) == [0]


def test_a_triplet_is_stated_by_a_bounded_number_of_chunks():
    triplet = Triplet("a", "r", "b")
    assert chunks_of(triplet, ["none", *["a b"] * 40]) == list(range(1, MOST_CHUNKS + 1))


def test_triplets_of_a_chunk_keep_their_order():
    triplets = [Triplet("b", "r", "a"), Triplet("a", "r", "b")]
    assert triplets_by_chunk(["b a", "a"], triplets) == [tuple(triplets), ()]
    assert triplets_by_chunk(["b a"], []) == [()]


@given(
    st.lists(st.text("abé .", max_size=20), min_size=1, max_size=6),
    st.lists(st.builds(Triplet, _names, st.just("r"), _names), max_size=6, unique=True),
)
def test_no_triplet_is_lost_and_chunks_that_name_both_ends_come_first(chunks, triplets):
    stated = triplets_by_chunk(chunks, triplets)
    assert len(stated) == len(chunks)
    assert {triplet for found in stated for triplet in found} == set(triplets)
    for triplet in triplets:
        ends = {name_key(triplet.head), name_key(triplet.tail)}
        found = [NameFinder(ends).found_in(text) for text in chunks]
        both = [number for number, names in enumerate(found) if names == ends]
        some = [number for number, names in enumerate(found) if names]
        at = [number for number, names in enumerate(stated) if triplet in names]
        assert at == (both or some[:1] or [0])


def test_ten_thousand_triplets_of_a_long_document_are_placed_in_seconds():
    triplets = [Triplet(f"a{one}", "r", f"b{two}") for one in range(100) for two in range(100)]
    chunks = [" ".join(f"a{n}" for n in range(100)), " ".join(f"b{n}" for n in range(100))] * 1000
    began = time.process_time()
    stated = triplets_by_chunk(chunks, triplets)
    assert time.process_time() - began < 20
    assert len(stated[0]) == len(triplets)
