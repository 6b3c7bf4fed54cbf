"""Views of a graph: bounded and true to the store, also with hubs, cycles, self-loops and odd names."""

import time

import numpy as np
import pytest
from capitals import Capitals
from graph_cases import GraphStore
from retriever_cases import TENANT, put, running
from sharded_cases import running_shards

from protocol.documents import CollectionInfo
from protocol.errors import NoGraph, UnknownCollection, UnknownEntity
from protocol.graph import GraphRequest, GraphSize, GraphState, GraphView, Triplet, ViewedEntity, ViewedRelation
from retriever.graph.graph_viewer import GraphViewer
from retriever.settings import GraphSettings
from retriever.store.facts import Facts, KeyedStatement, UnreadChunk
from retriever.store.incoming import SourceText

CHAIN = "Alice met Bert. Bert met Carol. Carol met Dora. Dora met Emil."


@pytest.fixture
def store(tmp_path) -> GraphStore:
    return GraphStore(tmp_path)


def viewer_of(store: GraphStore) -> GraphViewer:
    return GraphViewer(store.store, store.facts, store.catalog)


def view(store: GraphStore, *entities: str, tenant: str = TENANT, collection: str = "c", **limits: int) -> GraphView:
    with store.database.read() as transaction:
        return viewer_of(store).view(transaction, GraphRequest(tenant, collection, entities, **limits))


def names(found: GraphView) -> list[str]:
    return [entity.name for entity in found.entities]


def stated(found: GraphView) -> list[tuple[str, str, str]]:
    return [(relation.head, relation.relation, relation.tail) for relation in found.relations]


def state(store: GraphStore, name: str = "c", tenant: str = TENANT) -> GraphState:
    with store.database.read() as transaction:
        (info,) = viewer_of(store).with_states(transaction, tenant, [CollectionInfo(name, 0, 0)])
    return info.graph


def unread(store: GraphStore) -> int:
    with store.database.read() as transaction:
        return viewer_of(store).missing_chunks(transaction)[0]


def unreadable(store: GraphStore) -> int:
    with store.database.read() as transaction:
        return viewer_of(store).missing_chunks(transaction)[1]


def add_facts(store: GraphStore, facts: list[tuple[str, str, str]], document: str = "a") -> None:
    """Store facts as one chunk states them, each by a statement of its own. The names are their own keys."""
    store.put(document, "nothing here")
    with store.database.read() as transaction:
        (chunk,) = [row["id"] for row in transaction.execute("SELECT max(id) AS id FROM chunks")]
    vector = np.zeros(store.embedder.dimension, np.float32)
    keys = dict.fromkeys(end for head, _, tail in facts for end in (head, tail))
    statements = [
        KeyedStatement(0, 1, tuple(dict.fromkeys((head, tail))), (Triplet(head, relation, tail),), vector)
        for head, relation, tail in facts
    ]
    collection = store.collection()
    with store.database.write() as transaction:
        store.facts.add_entities(transaction, collection, {key: key for key in keys}, dict.fromkeys(keys, vector))
        entities = store.facts.known(transaction, collection, keys)
        read = UnreadChunk(chunk, collection, SourceText("nothing here"))
        store.facts.put(transaction, read, statements, entities)


def test_it_has_what_is_around_an_entity(store):
    store.put("a", CHAIN)
    store.read_all()
    found = view(store, "the ALICE!")
    assert found == GraphView(
        (ViewedEntity("Alice", 1, 0), ViewedEntity("Bert", 2, 1), ViewedEntity("Carol", 2, 2)),
        (ViewedRelation("Alice", "by", "Bert", "a", 0), ViewedRelation("Bert", "by", "Carol", "a", 0)),
        truncated=False,
        size=GraphSize(5, 4, 4),
        unread_chunks=0,
        unreadable_chunks=0,
    )
    assert names(view(store, "Alice", max_depth=0)) == ["Alice"]
    assert sorted(names(view(store, "Carol", max_depth=1))) == ["Bert", "Carol", "Dora"]
    assert names(view(store, "Alice", "Emil", max_depth=1)) == ["Alice", "Emil", "Bert", "Dora"]


def test_without_a_name_it_has_the_most_mentioned_entities(store):
    store.put("a", CHAIN)
    store.put("b", "Carol met Dora again. Carol slept.")
    store.read_all()
    found = view(store, max_nodes=2)
    assert names(found) == ["Carol", "Dora"]
    assert [entity.mentions for entity in found.entities] == [4, 3]
    assert stated(found) == [("Carol", "by", "Dora")], "a fact counts once, however often it is stated"
    assert found.truncated
    whole = view(store)
    assert len(whole.entities) == 5
    assert not whole.truncated


@pytest.mark.parametrize("limits", [{"max_nodes": 2}, {"max_relations": 1}, {"max_relations": 0}])
def test_what_a_limit_leaves_out_is_marked(store, limits):
    store.put("a", CHAIN)
    store.read_all()
    found = view(store, "Bert", max_depth=1, **limits)
    assert found.truncated
    assert len(found.entities) <= limits.get("max_nodes", 3)
    assert len(found.relations) <= limits.get("max_relations", 1)
    assert {end for head, _, tail in stated(found) for end in (head, tail)} <= set(names(found))


def test_cycles_and_self_loops_end(store):
    facts = [("a", "likes", "b"), ("b", "likes", "c"), ("c", "likes", "a"), ("a", "likes", "a"), ("a", "hates", "a")]
    add_facts(store, facts)
    found = view(store, "a", max_depth=5)
    assert names(found) == ["a", "b", "c"]
    assert sorted(stated(found)) == sorted(facts)
    assert not found.truncated


@pytest.mark.prove("retriever/graph/")
def test_hubs_of_100_000_relations_are_cut_within_a_second(store):
    count = 100_000
    out = [("hub", "has", f"leaf {number}") for number in range(count // 2)]
    into = [(f"source {number}", "has", "hub") for number in range(count // 2)]
    add_facts(store, [*out, *into, ("friend", "has", "hub"), ("friend", "has", "other")])
    for asked, limits in [(("hub",), {}), (("friend",), {"max_depth": 5}), ((), {}), (("hub", "friend"), {})]:
        # Of processor time, which does not count how long other tests hold the disk and the cores.
        began = time.thread_time()
        found = view(store, *asked, **limits)
        assert time.thread_time() - began < 1.0
        assert found.truncated
        assert len(found.entities) == 50
        assert 0 < len(found.relations) <= 100
        assert found.size.relations == count + 2
    assert "other" in names(found), "a hub leaves room for the neighbours of others"
    largest = view(store, "hub", max_depth=5, max_nodes=1000, max_relations=2000)
    assert (len(largest.entities), len(largest.relations)) == (1000, 999)


@pytest.mark.parametrize("name", ["Nobody", "", "...", "\u2028", "x" * 5000, "%", "\0", "\ud800"])
def test_an_unknown_entity_is_an_error(store, name):
    store.put("a", CHAIN)
    store.read_all()
    with pytest.raises(UnknownEntity) as raised:
        view(store, "Alice", name)
    assert raised.value.param == "label"


def test_huge_and_empty_names_of_a_text_do_not_enter_the_graph(store):
    store.put("a", f"{'A' + 'a' * 4000} met Bert. Carol met Bert.")
    store.read_all()
    assert set(names(view(store))) == {"Bert", "Carol"}
    assert stated(view(store)) == [("Carol", "by", "Bert")]


def test_a_collection_without_a_graph_says_why(store):
    with pytest.raises(UnknownCollection):
        view(store)
    with pytest.raises(NoGraph, match="no documents"):
        view(store, collection="default")
    assert state(store, "default") is GraphState.NONE
    store.put("a", "nothing here")
    with pytest.raises(NoGraph, match="1 chunks are still to be read") as raised:
        view(store)
    assert raised.value.param == "collection"
    assert state(store) is GraphState.READING
    store.read_all()
    with pytest.raises(NoGraph, match="no document names an entity"):
        view(store)
    assert state(store) is GraphState.NONE


def test_it_grows_while_chunks_are_read(store):
    for number in range(70):
        store.put(f"d{number}", CHAIN)
    assert unread(store) == 70
    assert store.indexer.index_next()
    found = view(store)
    assert found.unread_chunks == unread(store) == 6
    assert found.size.statements == 64 * 4
    assert state(store) is GraphState.READING
    store.read_all()
    assert view(store).unread_chunks == unread(store) == 0
    assert state(store) is GraphState.READY


def test_nothing_of_a_deleted_document_appears_in_the_middle_of_an_index_run(store):
    for number in range(70):
        store.put(f"d{number}", f"{CHAIN} Secret met Alice." if number == 0 else CHAIN)
    store.indexer.index_next()
    assert "Secret" in names(view(store))
    store.delete("d0")
    store.delete("d69")
    found = view(store)
    assert "Secret" not in names(found)
    assert {relation.document_id for relation in found.relations} == {"d1"}
    assert found.unread_chunks == unread(store) == 5
    with pytest.raises(UnknownEntity):
        view(store, "Secret")
    store.read_all()
    assert view(store).unread_chunks == 0


def test_chunks_that_another_extractor_has_read_are_unread(store):
    store.put("a", CHAIN)
    store.read_all()
    store.facts = Facts("another")
    assert view(store).unread_chunks == unread(store) == 1


class Choosy(Capitals):
    """Cannot read what is in brackets."""

    def extract(self, sources):
        found = super().extract(sources)
        return [None if "[" in source.text else read for source, read in zip(sources, found, strict=True)]


def test_chunks_that_cannot_be_read_are_counted(tmp_path):
    store = GraphStore(tmp_path, Choosy())
    store.put("a", "[Alice met Bert.]")
    store.put("b", "nothing here")
    store.put("a", "[Alice met Bert.]", tenant="other")
    store.read_all()
    with pytest.raises(NoGraph, match="1 chunks could not be read, and no other names an entity"):
        view(store)
    store.put("c", CHAIN)
    store.read_all()
    found = view(store)
    assert (found.unread_chunks, found.unreadable_chunks) == (unread(store), 1) == (0, 1)
    assert unreadable(store) == 2
    assert "[Alice" not in names(found)
    store.delete("a")
    assert (view(store).unreadable_chunks, unreadable(store)) == (0, 1)


def test_a_chunk_that_another_extractor_can_read_is_not_unreadable(tmp_path):
    store = GraphStore(tmp_path, Choosy())
    store.put("a", f"[{CHAIN}]")
    store.read_all()
    again = GraphStore(tmp_path, Capitals("another"))
    assert unreadable(again) == 0
    again.read_all()
    assert (view(again).unreadable_chunks, unreadable(again), len(names(view(again)))) == (0, 0, 5)
    # A chunk that was readable once loses what was read of it.
    back = GraphStore(tmp_path, Choosy())
    back.read_all()
    assert back.rows() == {"entities": 0, "statements": 0, "mentions": 0, "relations": 0, "read_chunks": 1}
    assert unreadable(back) == 1


def test_tenants_and_collections_are_apart(store):
    store.put("a", CHAIN)
    store.put("a", "Alice met Zoe.", tenant="other")
    store.put("a", "Alice met Yann.", collection="d")
    store.read_all()
    assert names(view(store, "Alice", tenant="other")) == ["Alice", "Zoe"]
    assert names(view(store, "Alice", collection="d")) == ["Alice", "Yann"]
    assert view(store, "Alice").size == GraphSize(5, 4, 4)
    with pytest.raises(UnknownEntity):
        view(store, "Zoe")
    with pytest.raises(UnknownCollection):
        view(store, collection="d", tenant="other")


async def test_a_retriever_shows_its_graphs_and_what_they_lack(tmp_path):
    async with running(tmp_path, graph=GraphSettings(kind="rules")) as retriever:
        await put(retriever, "a", "Michelle Phillips brought up Chynna Phillips.")
        await retriever.wait_for_graph()
        found = await retriever.view_graph(GraphRequest(TENANT, "default", ("michelle phillips",)))
        assert stated(found) == [("Michelle Phillips", "bring", "Chynna Phillips")]
        stats = await retriever.stats()
        assert (stats.unread_chunks, stats.unreadable_chunks) == (0, 0)
        assert [info.graph for info in await retriever.list_collections(TENANT)] == [GraphState.READY]
        assert [info.graph for info in await retriever.list_collections("other")] == [GraphState.NONE]
    async with running(tmp_path) as retriever:
        # What was stored before is not shown: searches cannot use it.
        with pytest.raises(NoGraph, match=r"retriever\.graph\.kind"):
            await retriever.view_graph(GraphRequest(TENANT, "default"))
        with pytest.raises(UnknownCollection):
            await retriever.view_graph(GraphRequest(TENANT, "nowhere"))
        stats = await retriever.stats()
        assert stats.unread_chunks is stats.unreadable_chunks is None
        assert [info.graph for info in await retriever.list_collections(TENANT)] == [GraphState.NONE]


async def test_shards_have_no_graph(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        with pytest.raises(NoGraph):
            await retriever.view_graph(GraphRequest(TENANT, "default"))
        with pytest.raises(UnknownCollection):
            await retriever.view_graph(GraphRequest(TENANT, "nowhere"))
