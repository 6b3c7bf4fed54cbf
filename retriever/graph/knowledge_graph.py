"""A collection's graph in memory, and what a question activates in it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import bmat, csr_matrix, diags

from retriever.embedding.base import Vector
from retriever.graph.paths import Allowed, PathFinder
from retriever.store.chunks import Ids
from retriever.store.facts import GraphArrays

Weights = npt.NDArray[np.float32]
"""One number a node, [n]."""

_MOST_ITERATIONS = 30
_TOLERANCE = 1e-4

_HOPS = 2
"""How often activation spreads from entities over statements to other entities."""

_SPREADING = 50
"""Statements over which activation spreads in a hop: those that are nearest to the question and to what is active."""

_LEAST_ACTIVATION = 0.04
_RESTART = 0.5

_CHUNK_RESTART = 0.05
"""The share of a chunk's score in the restart of the walk, beside 1 for a fully activated entity."""


def transition(edges: csr_matrix) -> csr_matrix:
    """Return the matrix that moves a walker along ``edges``, [n, n], symmetric, in proportion to their weights."""
    degree = np.asarray(edges.sum(axis=0)).ravel()
    return (edges @ diags(1 / np.where(degree > 0, degree, 1))).astype(np.float32).tocsr()


def personalised_pagerank(moves: csr_matrix, restart: Weights, restart_probability: float) -> Weights:
    """Return how often a walker visits each node if it often goes back to the ``restart`` nodes, in their proportion.

    This is the restart form of PageRank (Haveliwala 2002, "Topic-sensitive PageRank"), as HippoRAG uses it. A walker
    without an edge to leave by is lost, so the result sums to 1 at most. All zeros if ``restart`` is.
    """
    total = float(restart.sum())
    if total <= 0:
        return np.zeros_like(restart)
    restart = (restart / total).astype(np.float32)
    visits = restart
    for _ in range(_MOST_ITERATIONS):
        moved = restart_probability * restart + (1 - restart_probability) * (moves @ visits)
        change = float(np.abs(moved - visits).sum())
        visits = moved
        if change < _TOLERANCE:
            break
    return visits


class Activation(NamedTuple):
    """How much a question activates each entity, [e], and the statements over which it spread, with their weights."""

    entities: Weights
    statements: dict[int, float]

    def __or__(self, other: "Activation") -> "Activation":
        """The larger of both activations."""
        statements = dict(self.statements)
        for row, weight in other.statements.items():
            statements[row] = max(weight, statements.get(row, 0.0))
        return Activation(np.maximum(self.entities, other.entities), statements)


class KnowledgeGraph:
    """Entities, the statements that mention them, and the statements' chunks. Immutable.

    It is searched as LinearRAG does (Zhuang et al. 2025, "LinearRAG: Linear Graph Retrieval Augmented Generation on
    Large-scale Corpora"): activation spreads from the entities of a question over statements that are near to it, and a
    personalised PageRank over entities and chunks ranks the chunks. Relations name what was found, and rank nothing.
    ``paths`` finds those that they make up.
    """

    def __init__(self, arrays: GraphArrays) -> None:
        self.entities = arrays.entities
        self.chunks, chunk_rows = np.unique(arrays.chunks, return_inverse=True)
        self._relations = arrays.relations[:, 0]
        self._statement_chunks = arrays.chunks
        self._relation_rows = np.searchsorted(arrays.statements, arrays.relations[:, 1])
        self._relation_ends = np.searchsorted(arrays.entities, arrays.relations[:, 2:])
        self._statements = arrays.statements
        # With the store's 16-bit numbers, each search would spend most of its time on converting them.
        self._entity_embeddings = arrays.entity_embeddings.astype(np.float32)
        self._statement_embeddings = arrays.statement_embeddings.astype(np.float32)
        self.paths = PathFinder(
            arrays.entities, self._relations, self._relation_ends, self._relation_rows, self._statement_embeddings
        )
        self._mentions = self._mention_matrix(arrays.mentions)
        size = len(arrays.statements)
        of_chunk = csr_matrix((np.ones(size, np.float32), (chunk_rows, np.arange(size))), (len(self.chunks), size))
        contained = (of_chunk @ self._mentions).tocsr()
        self._chunks_with = np.asarray((contained > 0).sum(axis=0)).ravel()
        rarity = np.log((len(self.chunks) + 1) / (self._chunks_with + 0.5)).clip(0.0).astype(np.float32)
        self._rarity: Weights = rarity / max(float(rarity.max(initial=0.0)), 1e-6)
        self._often = contained.log1p()
        present = contained.sign()
        self._moves = transition(bmat([[None, present], [present.T, None]], format="csr", dtype=np.float32))

    def nearest_entities(self, names: Vector, least: float) -> dict[int, float]:
        """Return the row of the entity nearest to each of the ``names``, [n, dimension], if its cosine is ``least``."""
        best: dict[int, float] = {}
        similar = self._entity_embeddings @ names.T
        for row, cosine in zip(similar.argmax(axis=0).tolist(), similar.max(axis=0).tolist(), strict=True):
            if cosine >= least:
                best[row] = max(cosine, best.get(row, 0.0))
        return best

    def rows_of(self, entities: Iterable[int]) -> list[int]:
        """Return the rows of the entities that the graph has."""
        return _rows_of(self.entities, entities)

    def near(self, question: Vector) -> Vector:
        """Return the cosines of all statements with a ``question``, [s]."""
        cosines: Vector = self._statement_embeddings @ question
        return cosines

    def spread(self, seeds: Mapping[int, float], near: Vector) -> Activation:
        """Activate entities from ``seeds``, weights by entity row, over statements that are ``near`` the question."""
        activation = np.zeros(len(self.entities), np.float32)
        for row, weight in seeds.items():
            activation[row] = weight
        current, used = activation.copy(), dict[int, float]()
        for _ in range(_HOPS):
            reached = self._mentions @ (current * self._rarity)
            rows = np.flatnonzero(reached)
            if not len(rows):
                break
            current = self._spread_over(rows, reached[rows] * near[rows].clip(0.0), used)
            activation = np.maximum(activation, current)
        return Activation(activation, used)

    def nearest_statements(self, near: Vector) -> Activation:
        """Activate the entities of the statements that are ``near`` the question: cosines, [s]."""
        used: dict[int, float] = {}
        return Activation(self._spread_over(np.arange(len(near)), near.clip(0.0), used) * self._rarity, used)

    def rank(self, activation: Activation, chunk_scores: Mapping[int, float]) -> dict[int, float]:
        """Return the chunks that a walk visits, by id, best first; 1 is the score of the best.

        The walk restarts at activated entities, and at chunks by ``chunk_scores``, from 0 to 1, by id.
        """
        bonus = np.log1p(self._often @ (activation.entities * self._rarity))
        for row in _rows_of(self.chunks, chunk_scores):
            bonus[row] += chunk_scores[int(self.chunks[row])]
        restart = np.concatenate([_CHUNK_RESTART * bonus, activation.entities]).astype(np.float32)
        visits = personalised_pagerank(self._moves, restart, _RESTART)[: len(self.chunks)]
        best = float(visits.max(initial=0.0))
        if best <= 0:
            return {}
        order = np.argsort(-visits, kind="stable")
        order = order[visits[order] > 0]
        return dict(zip(self.chunks[order].tolist(), (visits[order] / best).tolist(), strict=True))

    def best_entities(self, activation: Activation, count: int) -> dict[int, float]:
        """Return the ids of the most activated entities, rare ones first among equals, with their activation."""
        active = np.flatnonzero(activation.entities > 0)
        weights = activation.entities[active]
        order = active[np.lexsort((-self._rarity[active], -weights))[:count]]
        return dict(zip(self.entities[order].tolist(), activation.entities[order].tolist(), strict=True))

    def chunk_count(self, entity: int) -> int:
        """Return how many chunks mention an entity."""
        return int(self._chunks_with[np.searchsorted(self.entities, entity)])

    def allowed(self, chunks: Ids) -> Allowed:
        """Return which statements are of these chunks, [s]."""
        return np.isin(self._statement_chunks, chunks)

    def relations_in(self, activation: Activation, count: int, allowed: Allowed | None = None) -> dict[int, float]:
        """Return the ids of the best relations, with their weights: those that the used statements state.

        A relation weighs as much as its statement, times its activated ends. Only ``allowed`` statements [s] count.
        """
        stated = np.zeros(len(self._statements), np.float32)
        stated[list(activation.statements)] = list(activation.statements.values())
        if allowed is not None:
            stated[~allowed] = 0.0
        places = np.flatnonzero(stated[self._relation_rows])
        ends = activation.entities[self._relation_ends[places]].sum(axis=1)
        weights = stated[self._relation_rows[places]] * ends
        order = np.argsort(-weights, kind="stable")[:count]
        return {int(self._relations[places[at]]): float(weights[at]) for at in order if weights[at] > 0}

    def _spread_over(self, rows: npt.NDArray[np.int64], weights: Weights, used: dict[int, float]) -> Weights:
        """Return the activation of the entities that the best of these statements mention."""
        order = np.arange(len(weights))
        if len(order) > _SPREADING:
            order = np.sort(np.argpartition(-weights, _SPREADING)[:_SPREADING])
        order = order[np.argsort(-weights[order], kind="stable")]
        order = order[weights[order] >= _LEAST_ACTIVATION]
        activation = np.zeros(len(self.entities), np.float32)
        for place in order:
            row, weight = int(rows[place]), float(weights[place])
            used[row] = max(weight, used.get(row, 0.0))
            mentioned = self._mentions.indices[self._mentions.indptr[row] : self._mentions.indptr[row + 1]]
            activation[mentioned] = np.maximum(activation[mentioned], weight)
        return activation

    def _mention_matrix(self, mentions: Ids) -> csr_matrix:
        rows = np.searchsorted(self._statements, mentions[:, 0])
        columns = np.searchsorted(self.entities, mentions[:, 1])
        ones = np.ones(len(mentions), np.float32)
        return csr_matrix((ones, (rows, columns)), (len(self._statements), len(self.entities)))


def _rows_of(stored: Ids, wanted: Iterable[int]) -> list[int]:
    """The rows of those of the ``wanted`` ids that are stored."""
    ids = np.unique(np.array(list(wanted), np.int64))
    rows = np.searchsorted(stored, ids)
    known = rows < len(stored)
    found: list[int] = rows[known][stored[rows[known]] == ids[known]].tolist()
    return found
