"""Searches that use the graph, through a real retriever with the real extractor."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest
from retriever_cases import TENANT, ids, put, put_lines, running, search

from protocol.errors import NoDocuments, NoGraph
from protocol.filters import Comparison
from protocol.graph import GraphMode
from protocol.retrieval import SearchKind, SearchRequest
from retriever.embedding.hashing import HashingEmbedder
from retriever.graph.extractors.rules import RulesProcess
from retriever.settings import GraphSettings

RULES = GraphSettings(kind="rules")
QUESTION = "Who is the child of the performer of Victim of Romance?"
DOCUMENTS = [
    {"id": "album", "text": "Victim of Romance is an album by Michelle Phillips.", "attributes": {"kind": "music"}},
    {"id": "mother", "text": "Michelle Phillips brought up Chynna Phillips.", "attributes": {"kind": "people"}},
    {"id": "film", "text": "The town has a cinema with a film every day.", "attributes": {}},
    {"id": "lake", "text": "Lake Superior lies between Canada and the United States.", "attributes": {}},
]
GRAPH_MODES = [mode for mode in GraphMode if mode is not GraphMode.NAIVE]


class LastingRules(RulesProcess):
    """Outlives the retrievers that use it."""

    def close(self) -> None:
        """Leave the worker to the next retriever."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module", autouse=True)
def one_worker() -> Iterator[None]:
    """All retrievers here use one worker, because its start takes seconds."""
    shared: dict[str, LastingRules] = {}

    def process(fingerprint: str) -> LastingRules:
        return shared.setdefault(fingerprint, LastingRules(fingerprint))

    with mock.patch("retriever.graph.extractors.factory.RulesProcess", process):
        yield
    for rules in shared.values():
        rules.end()


async def filled(retriever):
    await put_lines(retriever, DOCUMENTS)
    await retriever.wait_for_graph()


async def test_the_second_hop_is_found_over_the_entity_that_both_documents_name(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        found = await search(retriever, QUESTION, 2, mode=GraphMode.LOCAL)
        assert ids(found) == ["album", "mother"]
        assert found.mode is GraphMode.LOCAL
        assert "Michelle Phillips" in [entity.name for entity in found.graph.entities]
        assert ("album", 0) in [(relation.document_id, relation.index) for relation in found.graph.relations]
        assert found.scores[0] == pytest.approx(1.0)


@pytest.mark.parametrize("mode", GRAPH_MODES)
async def test_each_mode_ends_with_a_final_set_of_live_documents(tmp_path, mode):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        plain = await search(retriever, QUESTION, 50)
        found = await search(retriever, QUESTION, 3, mode=mode)
        assert 0 < len(found.docs) <= 3
        assert len(found.docs) == len(found.scores) == len(found.dense_scores) == len(found.sparse_scores)
        assert list(found.scores) == sorted(found.scores, reverse=True)
        cosines = dict(zip(ids(plain), plain.scores, strict=True))
        assert found.ranking(SearchKind.DENSE) == tuple(cosines.get(document) for document in ids(found))
        await retriever.delete_document(TENANT, "default", "album")
        assert "album" not in ids(await search(retriever, QUESTION, 3, mode=mode))


async def test_filters_hold_for_what_the_graph_finds(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        people = Comparison("kind", "eq", "people")
        for mode in GRAPH_MODES:
            assert ids(await search(retriever, QUESTION, 3, mode=mode, filters=people)) == ["mother"]


async def test_a_retriever_without_a_graph_refuses_graph_modes(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "Michelle Phillips sang.")
        with pytest.raises(NoGraph, match=r"retriever\.graph\.kind"):
            await search(retriever, QUESTION, mode=GraphMode.MIX)
        assert ids(await search(retriever, QUESTION)) == ["a"]


async def test_documents_that_name_nothing_make_no_graph(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        with pytest.raises(NoDocuments):
            await search(retriever, QUESTION, mode=GraphMode.MIX)
        await put(retriever, "a", "...and so it goes")
        await retriever.wait_for_graph()
        with pytest.raises(NoGraph, match="no document names an entity"):
            await search(retriever, QUESTION, mode=GraphMode.MIX)


async def test_a_graph_is_read_from_documents_that_were_stored_without_one(tmp_path):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, DOCUMENTS)
    async with running(tmp_path, graph=RULES) as retriever:
        await retriever.wait_for_graph()
        assert ids(await search(retriever, QUESTION, 2, mode=GraphMode.LOCAL)) == ["album", "mother"]


async def test_a_question_that_names_nothing_known_falls_back_to_its_statements(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        assert ids(await search(retriever, "What about Zzyzx?", mode=GraphMode.LOCAL)) == []
        assert ids(await search(retriever, "What about Zzyzx?", mode=GraphMode.MIX))


async def test_searches_go_on_while_documents_come_and_go(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)

        async def searching():
            for _ in range(20):
                for mode in GRAPH_MODES:
                    assert (await search(retriever, QUESTION, 3, mode=mode)).final

        async def changing():
            for number in range(10):
                await put(retriever, "mother", f"Michelle Phillips brought up child number {number}.")
                await put(retriever, f"new{number}", f"Album number {number} is by Michelle Phillips.")
                await retriever.delete_document(TENANT, "default", f"new{number}")

        await asyncio.gather(searching(), changing())


async def test_other_tenants_have_no_part_in_it(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        with pytest.raises(NoDocuments):
            await anext(retriever.search(SearchRequest("other", "default", QUESTION, 3, mode=GraphMode.MIX)))


async def test_paths_lead_from_entities_of_the_question_to_what_it_asks_for(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        paths = (await search(retriever, QUESTION, 2, mode=GraphMode.LOCAL)).graph.paths
        long = next(path for path in paths if len(path.relations) == 2)
        assert {source.document_id for source in long.sources} == {"album", "mother"}
        assert "Michelle Phillips" in long.entities


async def test_paths_are_stated_by_live_documents_that_the_filters_let_pass(tmp_path):
    async with running(tmp_path, graph=RULES) as retriever:
        await filled(retriever)
        people = Comparison("kind", "eq", "people")
        filtered = await search(retriever, QUESTION, 3, mode=GraphMode.MIX, filters=people)
        stating = {source.document_id for path in filtered.graph.paths for source in path.sources}
        assert stating == {"mother"}
        assert {relation.document_id for relation in filtered.graph.relations} <= {"mother"}
        await retriever.delete_document(TENANT, "default", "album")
        found = await search(retriever, QUESTION, 3, mode=GraphMode.MIX)
        assert {source.document_id for path in found.graph.paths for source in path.sources} == {"mother"}


async def test_the_number_and_length_of_paths_are_settings(tmp_path):
    async with running(tmp_path, graph=RULES.model_copy(update={"hops": 1, "paths": 1})) as retriever:
        await filled(retriever)
        (path,) = (await search(retriever, QUESTION, 3, mode=GraphMode.MIX)).graph.paths
        assert len(path.relations) == 1
    async with running(tmp_path, graph=RULES.model_copy(update={"paths": 0})) as retriever:
        assert (await search(retriever, QUESTION, 3, mode=GraphMode.MIX)).graph.paths == ()


class Counting(HashingEmbedder):
    """Counts the questions that it embeds."""

    questions = 0

    def embed_query(self, text):
        self.questions += 1
        return super().embed_query(text)


@pytest.mark.parametrize("kind", list(SearchKind))
async def test_a_question_is_embedded_once(tmp_path, kind):
    embedder = Counting()
    async with running(tmp_path, embedder, graph=RULES) as retriever:
        await filled(retriever)
        for number, mode in enumerate(GRAPH_MODES):
            embedder.questions = 0
            # The vectors of questions are remembered.
            question = f"{QUESTION} {'Really? ' * number}"
            assert ids(await search(retriever, question, 2, mode=mode, search=kind))
            assert embedder.questions == 1
