"""Searches, deletions and uploads in any order, with restarts, new stores and clocks that jump.

The store and the controller are the real ones. No query keeps KV of a document that was deleted after it was found,
and every query keeps what has been there since.
"""

import asyncio
import sqlite3
import tempfile
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from controller_integrity import check_integrity
from controller_under_test import Clock, ask, costs, report
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from protocol.cache import DocumentDeletion, TreeNode
from protocol.documents import Orphan
from protocol.retrieval import Lines, Revisions
from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.incoming import ChunkText, IncomingDocument, PreparedChunk
from retriever.store.orphans import Orphans

LETTERS = st.sampled_from("ab")
VECTOR = np.zeros(4, np.float32)


class Unsynced(Database):
    """A store that no power loss threatens."""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA synchronous = OFF")
        return connection


class Found(NamedTuple):
    """What a search has found, and the deletions that had been confirmed before it."""

    documents: str
    revisions: Revisions
    confirmed: int
    stores: int


class Deletions(RuleBasedStateMachine):
    """One tenant's documents, named by letters, each with one chunk of that content."""

    found = Bundle("found")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.stores = 0
        self.chunk_ids, self.query_ids = count(1), count(1)
        self.live: set[str] = set()
        # The contents of all confirmed deletions, in order.
        self.confirmed: list[str] = []
        # Those that were not stored again.
        self.gone: set[str] = set()
        # Whether the controller has inherited deletions of a store that there is no more.
        self.inherited = False
        self.new_store()
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        limits = ControllerSettings(prepare_after_s=None, policy="LRU")
        return Controller(limits, ["one"], self.clock, Engines(costs()), KvStorage(Capacities(1000, 1000)))

    def open(self) -> None:
        self.documents = Documents(Orphans(self.clock), self.clock)
        self.database = Unsynced(Path(self.folder.name) / f"store-{self.stores}.sqlite3")

    @rule(
        happens=st.sampled_from(["clocks", "clocks", "retriever", "retriever", "controller", "store"]), data=st.data()
    )
    def disturb(self, happens: str, data: st.DataObject) -> None:
        match happens:
            case "clocks":
                self.set_clocks(data.draw(st.integers(-(10**9), 10**9)))
            case "retriever":
                self.restart_retriever()
            case "controller":
                self.restart_controller()
            case "store":
                self.new_store()

    def set_clocks(self, seconds: int) -> None:
        self.clock.now += seconds

    def restart_retriever(self) -> None:
        self.database.close()
        self.open()

    def new_store(self) -> None:
        """The data folder was deleted: the documents are gone without a deletion."""
        if self.stores:
            self.database.close()
        self.stores += 1
        self.live.clear()
        self.open()

    def restart_controller(self) -> None:
        snapshot = self.loop.run_until_complete(self.controller.recovery.snapshot())
        check_integrity(self.controller)
        self.controller = self.new_controller()
        self.controller.recovery.recall(snapshot)
        self.inherited = True

    @rule(letter=LETTERS)
    def upload(self, letter: str) -> None:
        with self.database.write() as transaction:
            collection = self.documents.ensure_collection(transaction, "tenant", "default")
            chunk = PreparedChunk(next(self.chunk_ids), ChunkText(letter, letter, 0, 1), VECTOR, Lines(1, 1))
            document = IncomingDocument(letter, letter, letter, None, {})
            self.documents.put(transaction, collection, document, [chunk], "")
        self.live.add(letter)
        self.gone.discard(letter)

    @rule(letter=LETTERS)
    def delete(self, letter: str) -> None:
        """Delete a document, and confirm it."""
        with self.database.write() as transaction:
            collection = self.documents.ensure_collection(transaction, "tenant", "default")
            self.documents.delete(transaction, collection, letter)
        with self.database.read() as transaction:
            orphans = Orphans().of_document(transaction, "tenant", "default", letter)
        self.drop(orphans)
        self.live.discard(letter)

    @rule()
    def sweep(self) -> None:
        """Drop all orphans together, as a sweep does, and forget them."""
        with self.database.write() as transaction:
            orphans = Orphans().older_than(transaction, 0.0, 100)
            Orphans().forget(transaction, orphans)
        self.drop(orphans)

    def drop(self, orphans: list[Orphan]) -> None:
        if orphans:
            contents = tuple(orphan.content_hash for orphan in orphans)
            gone_at = max((orphan.gone_at for orphan in orphans), key=lambda revision: revision.number)
            self.loop.run_until_complete(self.controller.delete_document(DocumentDeletion(contents, "tenant", gone_at)))
            self.confirmed += contents
            self.gone.update(contents)

    @rule(target=found)
    def search(self) -> Found:
        with self.database.read() as transaction:
            collection = self.documents.collection(transaction, "tenant", "default")
            ids = [] if collection is None else Chunks().ids(transaction, collection).tolist()
            chunks = Chunks().resolve(transaction, collection, ids) if ids else {}
            revision = self.documents.revision(transaction)
        letters = "".join(sorted(chunk.content_hash for chunk in chunks.values()))
        return Found(letters, (revision,), len(self.confirmed), self.stores)

    @rule(search=found)
    def answer(self, search: Found) -> None:
        """A choice, a follow-up, a retry, a guess: any query on what was found, at any time."""
        query_id = f"query-{next(self.query_ids)}"
        asked = ask(query_id, search.documents, found_at=search.revisions)
        plan = self.loop.run_until_complete(self.controller.admit(asked))
        self.loop.run_until_complete(self.controller.complete(report(query_id)))
        deleted_since = set(search.documents) & set(self.confirmed[search.confirmed :])
        if deleted_since:
            assert plan.unshared
        elif not (self.inherited and self.stores > 1):
            # A successor does not know which of two stores was there first.
            assert not plan.unshared

    @invariant()
    def nothing_deleted_is_cached(self) -> None:
        view = self.loop.run_until_complete(self.controller.tree(99, 1000))
        cached = {node.content for top in view.namespaces.values() for node in _nodes(top)}
        assert not cached & (self.gone - self.live)

    def teardown(self) -> None:
        check_integrity(self.controller)
        self.database.close()
        self.loop.close()
        self.folder.cleanup()


def _nodes(nodes: tuple[TreeNode, ...]) -> list[TreeNode]:
    return [one for node in nodes for one in (node, *_nodes(node.children))]


Deletions.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestDeletions = Deletions.TestCase
