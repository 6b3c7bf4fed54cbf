"""The knowledge tree gives up a copy that an engine could not make, although the plan that was to make it has ended.

The tree, vLLM's scheduler, the connector and the tiers are real; a toy model computes.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_integrity import check_integrity

pytest.importorskip("vllm")

from plan_messages import plan_message
from toy_engine import PAGE, ToyEngine, answer_to

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.runtime.messages import lost_copies
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from generator.connector.step_jobs import Transfer
from protocol.kv import LostCopy, Paging
from protocol.tiers import Tier

NAMESPACE = "tenant"
INSTANCE = "one"
TOKENS = 8
"""Of each document. The GPU tier has room for one of them."""
HOST_PAGES = 20


class Stack:
    """A tree that plans for one engine, in which copies out of the GPU wait while ``copying`` is not set."""

    def __init__(self, folder: Path, asynchronous: bool) -> None:
        (folder / "kv").mkdir()
        host_gib = HOST_PAGES * 32 / (1 << 30)
        self.engine = ToyEngine(folder / "kv", 34, asynchronous, folder / "model", host_gib=host_gib, disk_gib=0)
        self.tree = KnowledgeTree(
            create_policy("LRU", Lookahead()),
            KvStorage(Capacities(TOKENS, HOST_PAGES * PAGE, 0), Paging(PAGE)),
            [INSTANCE],
            TreeCosts(lambda cached, new: 0.01 + new),
            arena=PageAllocator(HOST_PAGES, PAGE),
        )
        self.copying = threading.Event()
        self.failed: Counter[str] = Counter()
        self._transfer = self.engine.worker_side._jobs.transfer
        self.engine.worker_side._jobs.transfer = self._when_copying

    def ask(self, document: str, before: str = "") -> None:
        """Ask a question about a document, and end its plan before its copies are made.

        The engine needs the blocks of the document ``before`` at once, if one is given.
        """
        tokens = [(7 * at + ord(document)) % 90 for at in range(TOKENS)]
        (key,) = path_keys(NAMESPACE, [document])
        grant = self.tree.grants.admit(document, NAMESPACE, [PathDocument(document, TOKENS)], [key], 2, INSTANCE, 0.0)
        if before:
            self.release(before)
        nodes = tuple(grant.documents)
        message = plan_message(document, NAMESPACE, (document,), nodes, moves=tuple(grant.moves))
        self.copying.clear()
        prompt = [*tokens, 1, 2]
        self.engine.send(message, prompt, 2)
        self.engine.run_until(lambda: document in self.engine.finished)
        assert self.engine.answers[document] == answer_to(prompt, 2)
        unwritten = None
        reports, self.engine.connector.reports = self.engine.connector.reports, []
        for report in reports:
            if document in report.carried_out:
                unwritten = lost_copies(report.carried_out[document])
            if report.prefilled:
                assert list(report.prefilled) == [document]
                self.tree.grants.prefilled(grant, lost_copies(report.lost))
        self.tree.grants.complete(grant, kept=True, unwritten=unwritten)
        check_integrity(self.tree)
        self.copying.set()
        self.engine.run_until(lambda: self.engine.idle)

    def release(self, document: str) -> None:
        """Release a node early, as the engine does if a request would starve."""
        (key,) = path_keys(NAMESPACE, [document])
        side = self.engine.connector._scheduler_side
        for released in side._gpu.release(key.hex()):
            side._lost.add(LostCopy(released, Tier.GPU))

    def has_in_host(self, document: str) -> bool:
        """Whether the tree has a copy of a document in host memory."""
        (key,) = path_keys(NAMESPACE, [document])
        node = self.tree.registry.nodes.get(key)
        return node is not None and node.copy_in(self.tree.tiers.cache(Tier.HOST, INSTANCE)) is not None

    def _when_copying(self, transfer: Transfer) -> None:
        assert self.copying.wait(10)
        try:
            self._transfer(transfer)
        except Exception:
            self.failed[transfer.key] += 1
            raise


@pytest.fixture(params=[False, True], ids=["", "asynchronous steps"])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, request.param)
    yield stack
    stack.engine.close()


def test_a_copy_that_was_not_made_is_given_up_with_the_next_first_token(stack):
    stack.ask("a")
    stack.ask("b", before="a")
    assert stack.has_in_host("a"), "the plan of b was to copy it there"
    (key,) = path_keys(NAMESPACE, ["a"])
    assert stack.failed == {key.hex(): 1}
    stack.ask("c")
    assert not stack.has_in_host("a")
    for document in "defg":
        stack.ask(document)
    # The plan of c may have looked for it, because it was made before the loss was known.
    assert stack.failed[key.hex()] <= 2
    assert stack.failed.keys() == {key.hex()}
    assert stack.has_in_host("b")
