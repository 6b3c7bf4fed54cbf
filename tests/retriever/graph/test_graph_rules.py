"""Extraction by rules, with the real spaCy model."""

import time

import pytest

from protocol.graph import Triplet
from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.rules import RulesExtractor
from retriever.store.incoming import SourceText

TEXT = (
    "Victim of Romance is an album by Michelle Phillips. She is the mother of Chynna Phillips. "
    "It rained.\nThe record was produced by Jack Nitzsche."
)


@pytest.fixture(scope="module")
def phrases() -> Phrases:
    return Phrases()


@pytest.fixture(scope="module")
def rules(phrases) -> RulesExtractor:
    return RulesExtractor(phrases)


@pytest.fixture(scope="module")
def statements(rules):
    (found,) = rules.extract([SourceText(TEXT)])
    return found


def test_a_statement_is_a_sentence_that_names_something(statements):
    sentences = [TEXT[statement.start : statement.end] for statement in statements]
    assert sentences[0] == "Victim of Romance is an album by Michelle Phillips."
    assert not any("rained" in sentence for sentence in sentences)


def test_names_are_phrases_without_articles_and_pronouns(statements):
    names = {name for statement in statements for name in statement.names}
    assert {"Michelle Phillips", "Chynna Phillips", "Jack Nitzsche", "record"} <= names
    assert not names & {"She", "It", "the mother", "The record"}


def test_verbs_relate_subjects_to_objects(statements):
    triplets = {triplet for statement in statements for triplet in statement.triplets}
    assert Triplet("record", "produced by", "Jack Nitzsche") in triplets


def test_the_ends_of_a_relation_are_among_the_names_of_its_statement(statements):
    for statement in statements:
        assert {end for triplet in statement.triplets for end in (triplet.head, triplet.tail)} <= set(statement.names)


def test_a_title_is_named_by_each_statement_of_its_document(rules):
    (found,) = rules.extract([SourceText("She was a queen of Lotharingia. Her brother was Hucbert.", "Teutberga")])
    assert len(found) == 2
    assert all("Teutberga" in statement.names for statement in found)


def test_each_source_has_its_own_result_in_order(rules):
    found = rules.extract([SourceText("Paris is in France."), SourceText("..."), SourceText("Rome is in Italy.")])
    assert [bool(statements) for statements in found] == [True, False, True]
    assert "Italy" in found[2][0].names


def test_a_relation_of_a_thing_to_itself_is_left_out(rules):
    (found,) = rules.extract([SourceText("Rome is Rome. The city saw the City.")])
    assert [triplet for statement in found for triplet in statement.triplets] == []


def test_a_table_without_full_stops_does_not_fill_the_graph(rules):
    (found,) = rules.extract([SourceText(", ".join(f"Person{number} Smith" for number in range(400)))])
    assert max(len(statement.names) for statement in found) <= 64


def test_a_question_names_its_entities(phrases):
    names = phrases.names_in("Who is the child of the performer of Victim of Romance?")
    assert "performer" in names
    assert not any(name.lower() in ("who", "the child") for name in names)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "?", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "a" * 5000])
def test_odd_texts_are_read_without_an_error(rules, text):
    (found,) = rules.extract([SourceText(text)])
    assert all(0 <= statement.start < statement.end <= len(text) for statement in found)


@pytest.mark.parametrize("sign", ["!", "'s", "\u20ac", "a-"])
def test_long_words_do_not_take_time_that_grows_with_their_square(rules, phrases, sign):
    long = sign * (20_000 // len(sign))
    began = time.process_time()
    assert phrases.names_in(f"Who is Chynna Phillips? {long}") == ["Chynna Phillips"]
    (found,) = rules.extract([SourceText(f"{long} Michelle Phillips made a record.", long)])
    # It was half a minute, in which nobody else searched.
    assert time.process_time() - began < 2
    assert {"Michelle Phillips", "record"} <= {name for statement in found for name in statement.names}


def test_the_names_of_a_question_stand_in_its_first_characters(phrases):
    began = time.process_time()
    assert phrases.names_in("Who is Chynna Phillips? " + "What is it, and why? " * 5000) == ["Chynna Phillips"]
    assert time.process_time() - began < 1


def test_new_words_are_forgotten(rules, phrases, monkeypatch):
    monkeypatch.setattr("retriever.graph.extractors.token_attributes._MOST_WORDS", 500)

    def read(number: int) -> None:
        words = " ".join(f"xq{number}z{word}" for word in range(200))
        phrases.names_in(f"Who is {words}?")
        rules.extract([SourceText(f"Michelle Phillips saw {words}.", words)])

    read(0)
    held = len(phrases._nlp.vocab.strings)
    for number in range(1, 10):
        read(number)
    assert len(phrases._nlp.vocab.strings) == held
    assert len(phrases._attributes._words) < 2 * 500
