"""Paths from an entity along relations, on graphs that are small enough to follow by hand, and on one that is not."""

import time

import numpy as np
import pytest

from retriever.graph.paths import FoundPath, PathFinder

ALICE, TITANIC, TRAGEDY, BOB, ROSE = range(5)
DIMENSION = 4


def finder(ends: list[tuple[int, int]], vectors: list[list[float]], entities: int = 5) -> PathFinder:
    """Relation ``n`` has the id 100 + n, and is stated by statement ``n``. An entity's id is 10 plus its row."""
    return PathFinder(
        np.arange(entities) + 10,
        np.arange(len(ends)) + 100,
        np.array(ends, np.int64).reshape(len(ends), 2),
        np.arange(len(ends)),
        unit(vectors),
    )


def unit(vectors: list[list[float]]) -> np.ndarray:
    rows = np.array(vectors, np.float32).reshape(len(vectors), DIMENSION)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


QUESTION = unit([[1, 1, 0, 0]])[0]
# Alice likes Titanic; Titanic is a tragedy; Bob directs Titanic; Rose knows Alice.
ENDS = [(ALICE, TITANIC), (TITANIC, TRAGEDY), (BOB, TITANIC), (ROSE, ALICE)]
VECTORS = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0.2, 1, 0], [0, 0, 0, 1]]


def paths(ends, vectors, roots=(ALICE,), hops=2, count=30, allowed=None, entities=5) -> list[FoundPath]:
    made = finder(ends, vectors, entities)
    return made.from_roots(roots, unit(vectors) @ QUESTION, hops, count, allowed)


def steps(found: list[FoundPath]) -> set[tuple[tuple[int, bool], ...]]:
    return {path.steps for path in found}


def test_paths_lead_from_the_root_over_at_most_so_many_relations_in_both_directions():
    assert steps(paths(ENDS, VECTORS)) == {
        ((100, False),),
        ((100, False), (101, False)),
        ((100, False), (102, True)),
        ((103, True),),
    }
    assert steps(paths(ENDS, VECTORS, hops=1)) == {((100, False),), ((103, True),)}
    assert {path.root for path in paths(ENDS, VECTORS)} == {10}


def test_the_score_is_the_cosine_of_the_statements_sum():
    best = paths(ENDS, VECTORS)[0]
    # Each statement has half of what is asked, and both together have all of it.
    assert (best.steps, best.score) == (((100, False), (101, False)), pytest.approx(1.0))
    single = next(path for path in paths(ENDS, VECTORS) if path.steps == ((100, False),))
    assert single.score == pytest.approx(np.sqrt(0.5))
    assert [path.score for path in paths(ENDS, VECTORS)] == sorted(
        (path.score for path in paths(ENDS, VECTORS)), reverse=True
    )


def test_cycles_are_cut_where_they_would_come_back():
    ring = [(ALICE, TITANIC), (TITANIC, TRAGEDY), (TRAGEDY, ALICE)]
    found = paths(ring, VECTORS[:3], hops=4)
    assert steps(found) == {
        ((100, False),),
        ((100, False), (101, False)),
        ((102, True),),
        ((102, True), (101, True)),
    }


def test_a_relation_of_an_entity_with_itself_leads_nowhere():
    assert paths([(ALICE, ALICE)], VECTORS[:1]) == []
    assert steps(paths([(ALICE, ALICE), (ALICE, TITANIC)], VECTORS[:2])) == {((101, False),)}


def test_only_allowed_statements_are_used():
    allowed = np.array([True, False, True, False])
    assert steps(paths(ENDS, VECTORS, allowed=allowed)) == {((100, False),), ((100, False), (102, True))}
    assert paths(ENDS, VECTORS, allowed=np.zeros(4, bool)) == []


@pytest.mark.parametrize(("roots", "hops", "count"), [((), 2, 30), ((ALICE,), 2, 0), ((ALICE,), 0, 30)])
def test_nothing_is_found_from_nothing(roots, hops, count):
    assert paths(ENDS, VECTORS, roots, hops, count) == []


def test_a_graph_without_relations_has_no_paths():
    assert paths([], [], roots=(ALICE, BOB)) == []


def test_a_statement_without_direction_scores_nothing():
    (found,) = paths([(ALICE, TITANIC)], [[0, 0, 0, 0]])
    assert found.score == 0.0
    opposite = paths([(ALICE, TITANIC), (TITANIC, TRAGEDY)], [[1, 1, 0, 0], [-1, -1, 0, 0]])
    assert np.isfinite([path.score for path in opposite]).all()


def test_many_statements_of_one_relation_do_not_crowd_out_the_others():
    ends = [(ALICE, TITANIC)] * 500 + [(ALICE, BOB)]
    found = paths(ends, [[1, 1, 0, 0]] * 500 + [[1, 0, 1, 0]], hops=1)
    assert ((600, False),) in steps(found)
    assert len(found) < 5


def test_a_hub_with_a_hundred_thousand_edges_is_pruned_before_it_is_expanded():
    edges = 100_000
    random = np.random.default_rng(1)
    vectors = random.normal(size=(edges, DIMENSION)).astype(np.float32)
    # Entity 0 names the hub, 1. What is asked for stands at one of its edges.
    ends = [(0, 1), *((1, row) for row in range(2, edges + 1))]
    vectors[0] = [1, 1, 0.5, 0]
    vectors[77_777] = [1, 1, 0, 0]
    made = finder(ends, vectors.tolist(), edges + 1)
    near = unit(vectors.tolist()) @ QUESTION
    began = time.process_time()
    found = made.from_roots([0, 1, *range(2, 10)], near, 4, 30)
    assert time.process_time() - began < 2
    assert ((100, False), (100 + 77_777, False)) in steps(found)
    assert len(found) <= 120
