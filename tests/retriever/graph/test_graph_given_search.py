"""Searches over triplets that came with documents, through a real retriever."""

import pytest
from retriever_cases import TENANT, ids, put, put_lines, running, search

from protocol.errors import NoGraph
from protocol.graph import GraphMode, GraphRequest, Triplet
from retriever.settings import GraphSettings

GIVEN = GraphSettings(kind="given")
RULES = GIVEN.model_copy(update={"kind": "rules"})
QUESTION = "Where does the river of the home of Zorblax end?"
# The texts say nothing of what relates these names. So no extractor could have found it.
DOCUMENTS = [
    {
        "id": "home",
        "text": "About Zorblax.",
        "triplets": [{"head": "Zorblax", "relation": "lives in", "tail": "Quend"}],
    },
    {
        "id": "river",
        "text": "A report on water levels, page 7.",
        "triplets": [{"head": "Quend", "relation": "lies on", "tail": "Wirrel"}],
    },
    {"id": "other", "text": "The home of a river ends where it does."},
]


async def filled(retriever):
    job = await put_lines(retriever, DOCUMENTS)
    assert job.stored == len(DOCUMENTS)
    await retriever.wait_for_graph()


async def test_the_second_hop_leads_over_what_the_documents_came_with(tmp_path):
    async with running(tmp_path, graph=GIVEN) as retriever:
        await filled(retriever)
        found = await search(retriever, QUESTION, 3, mode=GraphMode.LOCAL)
        assert set(ids(found)) == {"home", "river"}
        assert {entity.name for entity in found.graph.entities} >= {"Zorblax", "Quend"}
        assert "Zorblax -lives in-> Quend -lies on-> Wirrel" in [path.text for path in found.graph.paths]
        await retriever.delete_document(TENANT, "default", "river")
        found = await search(retriever, QUESTION, 3, mode=GraphMode.LOCAL)
        assert {source.document_id for path in found.graph.paths for source in path.sources} == {"home"}


async def test_a_view_shows_them_and_nothing_else(tmp_path):
    async with running(tmp_path, graph=GIVEN) as retriever:
        await filled(retriever)
        view = await retriever.view_graph(GraphRequest(TENANT, "default", ("Quend",), 1))
        assert {
            (relation.head, relation.relation, relation.tail, relation.document_id) for relation in view.relations
        } == {
            ("Zorblax", "lives in", "Quend", "home"),
            ("Quend", "lies on", "Wirrel", "river"),
        }
        assert (view.size.entities, view.size.relations, view.unread_chunks) == (3, 2, 0)


async def test_documents_without_triplets_make_no_graph_of_this_kind(tmp_path):
    async with running(tmp_path, graph=GIVEN) as retriever:
        await put(retriever, "a", "Marie Curie was born in Warsaw.")
        await retriever.wait_for_graph()
        with pytest.raises(NoGraph, match="no document names an entity"):
            await search(retriever, QUESTION, mode=GraphMode.MIX)


async def test_rules_have_them_beside_what_they_find(tmp_path):
    async with running(tmp_path, graph=GIVEN) as retriever:
        await put(
            retriever, "a", "Warsaw lies on the Vistula.", triplets=(Triplet("Vistula", "ends in", "Baltic Sea"),)
        )
        await retriever.wait_for_graph()
    async with running(tmp_path, graph=RULES) as retriever:
        await retriever.wait_for_graph()
        view = await retriever.view_graph(GraphRequest(TENANT, "default", ("Vistula",), 1))
        assert {(relation.head, relation.relation, relation.tail) for relation in view.relations} == {
            ("Warsaw", "lie on", "Vistula"),
            ("Vistula", "ends in", "Baltic Sea"),
        }
