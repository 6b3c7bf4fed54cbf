"""Triplets that came with documents, as the graph has them: alone, and beside what an extractor finds."""

import pytest
from capitals import Capitals
from graph_cases import GraphStore

from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.graph.extractors.given import GivenExtractor, WithGiven
from retriever.store.incoming import SourceText

TEXT = "Marie Curie was born in Warsaw. Nothing was given of Paris."
BORN = Triplet("Marie Curie", "born in", "Warsaw")
LIES = Triplet("Warsaw", "lies on", "Vistula")


@pytest.fixture
def store(tmp_path) -> GraphStore:
    return GraphStore(tmp_path, GivenExtractor())


def test_given_triplets_are_all_that_is_found():
    found = GivenExtractor().extract([SourceText(TEXT, "Paris", (BORN,)), SourceText(TEXT, "Paris")])
    assert found == [[Statement(0, 31, ("Marie Curie", "Warsaw"), (BORN,))], []]


def test_a_graph_has_the_triplets_of_its_documents(store):
    store.put("a", TEXT, triplets=(BORN, LIES))
    store.put("b", "Warsaw has no triplets.")
    store.read_all()
    assert store.names() == {"Marie Curie", "Warsaw", "Vistula"}
    assert store.relations() == {BORN, LIES}
    # No sentence names the Vistula, so that triplet is stated by the chunk as a whole.
    assert store.rows() == {"entities": 3, "statements": 2, "mentions": 4, "relations": 2, "read_chunks": 2}


def test_a_replaced_or_deleted_document_has_none_of_its_old_triplets(store):
    store.put("a", TEXT, triplets=(BORN,))
    store.put("b", TEXT, triplets=(LIES,))
    store.read_all()
    store.put("a", TEXT, triplets=(Triplet("Marie Curie", "lived in", "Paris"),))
    store.read_all()
    assert store.relations() == {LIES, Triplet("Marie Curie", "lived in", "Paris")}
    store.delete("a")
    assert (store.relations(), store.names()) == ({LIES}, {"Warsaw", "Vistula"})
    store.delete("b")
    assert set(store.rows().values()) == {0}


def test_many_triplets_of_one_sentence_are_all_stored(store):
    many = tuple(Triplet("Marie Curie", f"relation {number}", f"entity {number}") for number in range(2000))
    store.put("a", TEXT, triplets=many)
    store.read_all()
    assert store.relations() == set(many)


def test_spellings_of_one_name_are_one_entity(store):
    store.put("a", TEXT, triplets=(BORN, Triplet("the WARSAW", "lies on", "Vistula")))
    store.read_all()
    assert store.names() == {"Marie Curie", "Warsaw", "Vistula"}
    assert store.relations() == {BORN, LIES}


def test_an_entity_has_the_spelling_that_was_found_first(store):
    store.put("a", "one", triplets=(LIES,))
    store.put("b", "two", triplets=(Triplet("The WARSAW", "is", "a city"),))
    store.read_all()
    assert store.names() == {"Warsaw", "Vistula", "a city"}


def test_triplets_count_beside_what_an_extractor_finds():
    extractor = WithGiven(Capitals())
    (found,) = extractor.extract(
        [
            SourceText(
                "Marie met Pierre. It rained in Paris.",
                None,
                (Triplet("Marie", "met", "Pierre"), Triplet("Marie", "married", "Jacques")),
            )
        ]
    )
    assert found == [
        Statement(0, 17, ("Marie", "Pierre"), (Triplet("Marie", "by", "Pierre"), Triplet("Marie", "met", "Pierre"))),
        Statement(0, 37, ("Marie", "Jacques"), (Triplet("Marie", "married", "Jacques"),)),
        Statement(17, 37, ("It", "Paris"), (Triplet("It", "by", "Paris"),)),
    ]
    assert extractor.fingerprint == "capitals"


def test_a_chunk_without_triplets_is_as_the_extractor_has_read_it():
    source = SourceText("Marie met Pierre.", "Marie")
    assert WithGiven(Capitals()).extract([source]) == Capitals().extract([source])


class Unreadable(Capitals):
    """Can read no chunk."""

    def extract(self, sources):
        super().extract(sources)
        return [None for _ in sources]


def test_a_chunk_that_cannot_be_read_has_its_triplets_all_the_same():
    seen = []
    extractor = WithGiven(Unreadable(before=seen.append))
    read = extractor.extract([SourceText(TEXT, None, (BORN,)), SourceText(TEXT)])
    assert read == [[Statement(0, 31, ("Marie Curie", "Warsaw"), (BORN,))], None]
    # What the extractor finds depends on nothing but the text and its title.
    assert seen == [[SourceText(TEXT), SourceText(TEXT)]]


def test_another_kind_of_graph_has_the_triplets_of_stored_documents(store, tmp_path):
    store.put("a", "Titanic was made by Cameron.", triplets=(BORN,))
    store.read_all()
    assert store.relations() == {BORN}
    other = GraphStore(tmp_path, WithGiven(Capitals()))
    other.read_all()
    assert other.relations() == {BORN, Triplet("Titanic", "by", "Cameron")}
