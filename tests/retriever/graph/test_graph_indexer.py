"""The index of the graph: incremental, and whole after crashes, failures and deletions at any time."""

import pytest
from capitals import Capitals
from graph_cases import GraphStore, failing

from protocol.errors import StorageFull, Unavailable
from protocol.graph import Triplet
from protocol.repeating import MOST_ATTEMPTS
from retriever.graph.extractors.base import ExtractorEnded, Statement


@pytest.fixture
def store(tmp_path) -> GraphStore:
    return GraphStore(tmp_path)


def test_documents_become_entities_statements_and_relations(store):
    store.put("a", "Titanic was made by Cameron. Cameron came from Canada.")
    store.put("b", "Canada is cold. nothing here.")
    store.read_all()
    assert store.names() == {"Titanic", "Cameron", "Canada"}
    assert store.relations() == {("Titanic", "by", "Cameron"), ("Cameron", "by", "Canada")}
    assert store.rows() == {"entities": 3, "statements": 3, "mentions": 5, "relations": 2, "read_chunks": 2}


def test_a_chunk_is_read_once(store, tmp_path):
    store.put("a", "Titanic was made by Cameron.")
    store.read_all()
    store.put("b", "Cameron came from Canada.")
    store.read_all()
    assert store.extractor.read == 2
    again = GraphStore(tmp_path)
    again.read_all()
    assert again.extractor.read == 0


class Nonsense(Capitals):
    """Relates what are no names, beside one relation that is as it should be."""

    def extract(self, sources):
        huge = "Very" * 1000
        triplets = [
            ("Titanic", "by", "Cameron"),
            ("", "by", "Cameron"),
            ("Titanic", "by", "..."),
            (huge, "by", "Cameron"),
        ]
        triplets += [("Titanic", huge, "Cameron"), ("Titanic", "", "Cameron"), ("Titanic", "by", "Unknown")]
        names = ("Titanic", "Cameron", "", "...", huge)
        return [[Statement(0, 10, names, tuple(map(Triplet._make, triplets)))] for _ in sources]


def test_names_that_are_empty_or_huge_are_no_entities(tmp_path):
    store = GraphStore(tmp_path, Nonsense())
    store.put("a", "Titanic was made by Cameron.")
    store.read_all()
    assert store.names() == {"Titanic", "Cameron"}
    assert store.relations() == {("Titanic", "by", "Cameron")}


def test_another_extractor_reads_everything_again(store, tmp_path):
    store.put("a", "Titanic was made by Cameron.")
    store.read_all()
    before = store.rows()
    other = GraphStore(tmp_path, Capitals("another"))
    other.read_all()
    assert other.extractor.read == 1
    assert other.rows() == before
    assert other.names() == {"Titanic", "Cameron"}


def test_a_deleted_document_takes_along_what_only_it_has_said(store):
    store.put("a", "Titanic was made by Cameron.")
    store.put("b", "Cameron came from Canada.")
    store.read_all()
    store.delete("a")
    assert store.names() == {"Cameron", "Canada"}
    assert store.relations() == {("Cameron", "by", "Canada")}
    store.delete("b")
    assert set(store.rows().values()) == {0}


def test_a_replaced_document_has_only_its_new_facts(store):
    store.put("a", "Titanic was made by Cameron.")
    store.read_all()
    store.put("a", "Avatar was made by Cameron.")
    assert store.names() == set()
    store.read_all()
    assert store.names() == {"Avatar", "Cameron"}


def test_a_document_that_is_deleted_while_it_is_read_leaves_nothing(tmp_path):
    store = GraphStore(tmp_path, Capitals(before=lambda _: store.delete("a")))
    store.put("a", "Titanic was made by Cameron.")
    store.put("b", "Canada is cold.")
    store.read_all()
    assert store.names() == {"Canada"}
    assert store.rows()["read_chunks"] == 1


def test_an_entity_that_goes_while_it_is_mentioned_again_is_stored_anew(tmp_path):
    store = GraphStore(tmp_path)
    store.put("a", "Cameron came from Canada.")
    store.read_all()
    store.put("b", "Titanic was made by Cameron.")
    # Cameron is known when b is read, and gone when b is stored.
    deleting = iter([lambda: store.delete("a")])
    known = store.facts.known

    def known_and_then_deleted(transaction, collection, keys):
        found = known(transaction, collection, keys)
        if not transaction.execute("PRAGMA query_only").fetchone()[0]:
            return found
        for delete in deleting:
            delete()
        return found

    store.facts.known = known_and_then_deleted
    store.read_all()
    assert store.names() == {"Titanic", "Cameron"}
    assert store.relations() == {("Titanic", "by", "Cameron")}


def test_a_crash_between_groups_loses_nothing_and_repeats_nothing(tmp_path):
    store = GraphStore(tmp_path)
    for number in range(100):
        store.put(f"d{number}", "Titanic was made by Cameron.")
    assert store.indexer.index_next()
    stored = store.rows()["read_chunks"]
    assert 0 < stored < 100
    store.groups.close()
    store.database.close()
    again = GraphStore(tmp_path)
    again.read_all()
    assert again.extractor.read == 100 - stored
    assert again.rows()["statements"] == 100
    assert again.names() == {"Titanic", "Cameron"}


def test_what_could_not_be_stored_is_not_read_a_second_time(tmp_path):
    store = GraphStore(tmp_path)
    store.put("a", "Titanic was made by Cameron.")
    put, failures = store.facts.put, iter([StorageFull("full")])

    def put_after_a_failure(*values):
        for failure in failures:
            raise failure
        put(*values)

    store.facts.put = put_after_a_failure
    with pytest.raises(StorageFull):
        store.read_all()
    assert store.rows()["read_chunks"] == 0
    store.read_all()
    assert store.names() == {"Titanic", "Cameron"}
    assert store.extractor.read == 1


def test_chunks_that_come_while_the_last_group_is_stored_are_read_by_the_next_call(store):
    store.put("a", "Titanic was made by Cameron.")
    assert store.indexer.index_next()
    # Nothing was there to be read ahead.
    store.put("b", "Cameron came from Canada.")
    assert store.indexer.index_next()
    assert store.names() == {"Titanic", "Cameron", "Canada"}
    assert not store.indexer.index_next()


def test_a_failure_while_reading_leaves_the_chunk_for_later(tmp_path):
    store = GraphStore(tmp_path, Capitals(before=failing(1, Unavailable("busy"))))
    store.put("a", "Titanic was made by Cameron.")
    with pytest.raises(Unavailable):
        store.read_all()
    assert set(store.rows().values()) == {0}
    store.read_all()
    assert store.names() == {"Titanic", "Cameron"}


def test_collections_and_tenants_have_graphs_of_their_own(store):
    store.put("a", "Titanic was made by Cameron.", "films")
    store.put("a", "Cameron came from Canada.", "people")
    store.put("a", "Secret belongs to Cameron.", "films", tenant="other")
    store.read_all()
    assert store.names("films") == {"Titanic", "Cameron"}
    assert store.names("people") == {"Cameron", "Canada"}
    graphs = [store.catalog.get(store.collection(name)) for name in ("films", "people")]
    other = store.catalog.get(store.collection("films", "other"))
    ids = [set(graph.entities.tolist()) for graph in (*graphs, other)]
    assert len(set().union(*ids)) == sum(map(len, ids))


def test_the_graph_in_memory_follows_the_store(store):
    store.put("a", "Titanic was made by Cameron.")
    assert store.catalog.get(store.collection()) is None
    store.read_all()
    assert len(store.catalog.get(store.collection()).entities) == 2
    store.put("b", "Cameron came from Canada.")
    store.read_all()
    assert len(store.catalog.get(store.collection()).entities) == 3


class Killed(BaseException):
    """As if the process ended here."""


def deadly(error: BaseException):
    def read(sources):
        if any("deadly" in source.text for source in sources):
            raise error

    return read


@pytest.mark.parametrize("error", [Killed(), ExtractorEnded("its process has ended")])
def test_a_chunk_that_kills_its_reader_is_given_up_and_the_others_are_read(tmp_path, error):
    store = GraphStore(tmp_path)
    store.put("a", "Marie met Pierre.")
    store.put("b", "A deadly Viper bit Paul.")
    store.put("c", "Anna knows Otto.")
    deaths = 0
    while True:
        # Each is a process that ends without closing anything.
        store = GraphStore(tmp_path, Capitals(before=deadly(error)))
        try:
            store.read_all()
            break
        except (Killed, ExtractorEnded):
            deaths += 1
    assert deaths == MOST_ATTEMPTS
    assert store.names() == {"Marie", "Pierre", "Anna", "Otto"}
    with store.database.read() as transaction:
        assert store.facts.unreadable_count(transaction, store.collection()) == 1
        assert transaction.execute("SELECT count(*) FROM attempts").fetchone()[0] == 0
