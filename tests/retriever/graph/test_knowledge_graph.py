"""What a question activates in a graph, on graphs that are small enough to follow by hand."""

import numpy as np
import pytest

from retriever.graph.knowledge_graph import KnowledgeGraph
from retriever.store.facts import GraphArrays

# Entities 11 to 15, statements 21 to 24 of the chunks 1 to 3. Axis 0 of an embedding is what the question asks for.
ALBUM, PHILLIPS, CHYNNA, LAKE, HUB = range(5)


def unit(*parts: float) -> list[float]:
    vector = np.array(parts, np.float64)
    return (vector / np.linalg.norm(vector)).tolist()


@pytest.fixture
def graph() -> KnowledgeGraph:
    return KnowledgeGraph(
        GraphArrays(
            entities=np.array([11, 12, 13, 14, 15]),
            entity_embeddings=np.array(
                [unit(0, 1, 0), unit(0, 0, 1), unit(1, 0, 1), unit(1, 1, 1), unit(0, 1, 1)], np.float16
            ),
            statements=np.array([21, 22, 23, 24]),
            chunks=np.array([1, 2, 3, 3]),
            statement_embeddings=np.array(
                [unit(1, 0.5, 0), unit(1, 0, 0.2), unit(0.1, 1, 0), unit(-1, 0, 0)], np.float16
            ),
            # The album is by Phillips; Phillips is the mother of Chynna; a lake; the lake again.
            mentions=np.array(
                [[21, 11], [21, 12], [22, 12], [22, 13], [23, 14], [24, 14], [21, 15], [22, 15], [23, 15]]
            ),
            relations=np.array([[31, 21, 11, 12], [32, 22, 12, 13], [33, 23, 14, 15]]),
        )
    )


QUESTION = np.array(unit(1, 0, 0), np.float32)


def test_activation_reaches_entities_over_statements_that_are_near_to_the_question(graph):
    activation = graph.spread({ALBUM: 1.0}, graph.near(QUESTION))
    assert activation.entities[ALBUM] >= activation.entities[PHILLIPS] > activation.entities[CHYNNA] > 0
    assert activation.entities[LAKE] == 0


def test_without_seeds_nothing_is_active(graph):
    activation = graph.spread({}, graph.near(QUESTION))
    assert not activation.entities.any()
    assert graph.rank(activation, {}) == {}
    assert graph.best_entities(activation, 10) == {}
    assert graph.relations_in(activation, 10) == {}


def test_an_entity_of_every_chunk_passes_little_on(graph):
    rare, common = graph.spread({ALBUM: 1.0}, graph.near(QUESTION)), graph.spread({HUB: 1.0}, graph.near(QUESTION))
    assert common.entities[PHILLIPS] < 0.3 * rare.entities[PHILLIPS]


def test_the_walk_finds_the_chunk_of_the_second_hop(graph):
    ranking = graph.rank(graph.spread({ALBUM: 1.0}, graph.near(QUESTION)), {})
    assert list(ranking)[:2] == [1, 2]
    assert next(iter(ranking.values())) == 1.0
    assert list(ranking.values()) == sorted(ranking.values(), reverse=True)


def test_scores_of_chunks_are_where_the_walk_restarts_too(graph):
    activation = graph.spread({ALBUM: 1.0}, graph.near(QUESTION))
    without, with_score = graph.rank(activation, {}), graph.rank(activation, {3: 1.0, 999: 1.0})
    assert with_score[3] > without.get(3, 0.0)
    assert 999 not in with_score


def test_the_nearest_statements_activate_what_they_mention(graph):
    activation = graph.nearest_statements(graph.near(QUESTION))
    assert set(activation.statements) == {0, 1, 2}
    assert activation.entities[CHYNNA] > activation.entities[LAKE] > 0


def test_relations_are_those_of_the_statements_used_best_first(graph):
    activation = graph.spread({ALBUM: 1.0}, graph.near(QUESTION))
    assert list(graph.relations_in(activation, 10)) == [31, 32]
    assert list(graph.relations_in(activation, 1)) == [31]


def test_entities_are_reported_by_activation(graph):
    activation = graph.spread({ALBUM: 1.0}, graph.near(QUESTION))
    assert list(graph.best_entities(activation, 2)) == [11, 12]
    assert [graph.chunk_count(id_) for id_ in (11, 12, 15)] == [1, 2, 3]


def test_a_name_that_is_spelled_otherwise_finds_the_nearest_entity(graph):
    names = np.array([unit(0, 1, 0.1), unit(-1, -1, -1)], np.float32)
    assert list(graph.nearest_entities(names, 0.6)) == [ALBUM]
    assert graph.nearest_entities(names[:0], 0.6) == {}


def test_rows_are_found_by_id(graph):
    assert graph.rows_of([13, 11, 99]) == [0, 2]
    assert graph.rows_of([]) == []


def test_both_activations_together_are_the_larger_one(graph):
    local, wide = graph.spread({ALBUM: 1.0}, graph.near(QUESTION)), graph.nearest_statements(graph.near(QUESTION))
    both = local | wide
    assert both.entities.tolist() == np.maximum(local.entities, wide.entities).tolist()
    assert both.statements == {
        row: max(local.statements.get(row, 0), wide.statements.get(row, 0))
        for row in {*local.statements, *wide.statements}
    }
