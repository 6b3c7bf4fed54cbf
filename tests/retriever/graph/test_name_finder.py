"""Which names stand in a text."""

import time

from hypothesis import given
from hypothesis import strategies as st

from retriever.graph.names import NameFinder, name_key, words_of

_words = st.text("abé ._", max_size=12)


def found(text: str, *names: str) -> set[str]:
    return NameFinder(map(name_key, names)).found_in(text)


def test_a_name_stands_where_its_words_do_in_any_spelling():
    text = "Zoë met Marie, the Curie of Paris_2."
    assert found(text, "ZOE", "Paris 2", "the Paris", "of Paris") == {"zoe", "of paris"} | {"paris 2", "paris"}
    assert found(text, "Marie the Curie", "Marie Curie") == {"marie the curie"}


def test_words_are_whole():
    assert found("Parisians like comparisons.", "Paris", "like c") == set()


def test_names_within_names_are_all_found():
    assert found("New York City Hall", "New York", "York City", "New York City", "York", "City Hall Park") == {
        "new york",
        "york city",
        "new york city",
        "york",
    }


def test_what_is_no_name_stands_nowhere():
    assert found("... a", "", "...") == set()
    assert found("", "a") == set()


@given(_words, st.lists(_words, max_size=6))
def test_it_finds_what_a_search_for_each_key_finds(text, names):
    keys = {name_key(name) for name in names} - {""}
    assert found(text, *names) == {key for key in keys if f" {key} " in f" {' '.join(words_of(text))} "}


def test_many_names_take_no_longer():
    finder = NameFinder(f"{one} {other} x" for one in range(150) for other in range(150))
    text = " ".join(str(number % 150) for number in range(200_000))
    began = time.process_time()
    assert finder.found_in(text) == set()
    assert time.process_time() - began < 5
