"""Random sequences over two instances that share host memory and disk.

Loads, failures, aborts, preemptions, resets, evictions, deletions and restarts come in any order. No token is ever
wrong. At the end, every file and page has an owner, and every block is free. vLLM's scheduler, the connector and the
tiers are real; a toy model computes, and a random controller plans (``toy_engine``, ``toy_controller``).

``RAGTREE_SEQUENCES`` sets the number of sequences of each kind of model, for a longer run than CI's.
"""

import gc
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from weakref import WeakSet

import pytest
from example_counts import examples
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tier_checks import check_tier

pytest.importorskip("vllm")

from toy_controller import ToyController
from toy_engine import ONE_KIND, PAGE, ToyEngine, answer_to

from generator.connector.messages import RequestMessage
from generator.tiers.arena import State
from protocol.kv import Orders, PageGroup
from protocol.tiers import Tier

pytestmark = [pytest.mark.hypothesis, pytest.mark.timeout(7200)]

SEQUENCES = int(os.environ.get("RAGTREE_SEQUENCES", examples(150) // 6))
BATCH = 150
"""Sequences of one run: Hypothesis keeps them all in memory."""
OPENED: WeakSet[ToyEngine] = WeakSet()
INSTANCES = st.integers(0, 1)
SEEDS = st.integers(0, 2**32)
BLOCKS = 33
"""Room for two or three prompts, so that requests are preempted and held nodes are released."""
DOCUMENTS = 3
HOST_PAGES = 14
PAGE_BYTES = 8
"""Of one token."""
DISK_BYTES = 40_000
"""Room for about nine files."""


def damage(files: list[Path], fault: str, random: Random) -> None:
    """Damage one of the files. Raises FileNotFoundError if it is gone, and does not create it again."""
    file, other = random.choice(files), random.choice(files)
    if fault == "delete":
        file.unlink()
        return
    with file.open("r+b") as opened:
        content = bytearray(opened.read())
        if fault == "truncate":
            opened.truncate(random.randrange(len(content) + 1))
            return
        if fault == "swap":
            content = bytearray(other.read_bytes())
        elif content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        opened.seek(0)
        opened.write(content)
        opened.truncate()


def a_path(random: Random) -> list[int]:
    """Documents in an order. Few paths, so that requests share copies."""
    documents = random.sample(range(DOCUMENTS), random.randint(1, DOCUMENTS))
    return sorted(documents) if random.random() < 0.7 else documents


class DataPlane(RuleBasedStateMachine):
    groups = ONE_KIND

    @initialize(seed=SEEDS, asynchronous=st.booleans(), within_steps=st.booleans())
    def start(self, seed: int, asynchronous: bool, within_steps: bool) -> None:
        random = Random(seed)
        self.blocks = BLOCKS * len(self.groups) + 1
        self.host_pages = HOST_PAGES * len(self.groups)
        self.asynchronous = asynchronous
        self.within_steps = within_steps
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER)) / "kv"
        self.folder.mkdir()
        documents = [[random.randrange(90) for _ in range(random.randint(1, 26))] for _ in range(DOCUMENTS)]
        self.controller = ToyController([self.engine(), self.engine()], documents, self.host_pages)

    def engine(self) -> ToyEngine:
        page_bytes = PAGE_BYTES * PAGE * max(group.times for group in self.groups)
        kv = {"host_gib": self.host_pages * page_bytes / (1 << 30), "disk_gib": DISK_BYTES / (1 << 30)}
        engine = ToyEngine(
            self.folder, self.blocks, self.asynchronous, FOLDER / "model", self.groups, self.within_steps, **kv
        )
        OPENED.add(engine)
        return engine

    @rule(instance=INSTANCES, seed=SEEDS, tokens=st.integers(1, 12), speculative=st.booleans())
    def ask(self, instance: int, seed: int, tokens: int, speculative: bool) -> None:
        random = Random(seed)
        chosen = a_path(random)
        self.controller.ask(instance, chosen, random, tokens, speculative)

    @rule(instance=INSTANCES, seed=SEEDS, count=st.integers(2, 3))
    def ask_the_same_at_once(self, instance: int, seed: int, count: int) -> None:
        for number in range(count):
            random = Random(seed)
            chosen = a_path(random)
            self.controller.ask(instance, chosen, Random(seed + number), 4, False)

    @rule(instance=INSTANCES, steps=st.integers(1, 12))
    def step(self, instance: int, steps: int) -> None:
        for _ in range(steps):
            self.controller.engines[instance].step()
            self.controller.collect(instance)

    @rule(instance=INSTANCES)
    def finish(self, instance: int) -> None:
        self.run_to_the_end(instance)

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        if self.controller.plans:
            self.controller.abort(Random(seed).choice(sorted(self.controller.plans)))

    @rule(instance=INSTANCES, seed=SEEDS)
    def move(self, instance: int, seed: int) -> None:
        self.controller.move(instance, Random(seed))

    @rule(instance=INSTANCES)
    def check(self, instance: int) -> None:
        self.controller.check(instance)

    @rule(document=st.integers(0, DOCUMENTS - 1))
    def delete(self, document: int) -> None:
        self.controller.forget(f"d{document}")

    @rule(instance=INSTANCES, seed=SEEDS)
    def ask_behind_pages_that_are_taken_away(self, instance: int, seed: int) -> None:
        """Two requests at once, whose pages in host memory are freed before they are loaded."""
        self.take_pages_away(instance, seed)
        self.ask_the_same_at_once(instance, seed, 2)

    @rule(instance=INSTANCES, seed=SEEDS)
    def take_pages_away(self, instance: int, seed: int) -> None:
        """Pages of host memory are freed behind the controller's back."""
        host = self.controller.engines[instance].worker_side._tiers[Tier.HOST]
        nodes = host.nodes()
        if nodes:
            stored = Random(seed).choice(nodes)
            host.drop(stored.node.key, stored.pages)

    @rule(instance=INSTANCES, seed=SEEDS)
    def step_while_a_page_changes(self, instance: int, seed: int) -> None:
        """Another process gets a page of host memory after a step is scheduled, writes into it, and is killed."""
        host = self.controller.engines[instance].worker_side._tiers[Tier.HOST]

        def change() -> None:
            page = Random(seed).randrange(self.host_pages)
            with host._file.locks() as locks:
                if locks.take(page + 1):
                    host._file.pages[page] = 99
                    host._states[page] = State.FREE

        self.controller.engines[instance].step(change)
        self.controller.collect(instance)

    @rule(seed=SEEDS, fault=st.sampled_from(["flip", "truncate", "delete", "swap"]))
    def damage_a_file(self, seed: int, fault: str) -> None:
        files = sorted(self.files())
        # The engines' threads may delete files meanwhile.
        with suppress(FileNotFoundError):
            if files:
                damage(files, fault, Random(seed))

    @rule(instance=INSTANCES)
    def reset(self, instance: int) -> None:
        """All running requests are preempted, and may run again in the very next step."""
        # With asynchronous steps, vLLM preempts all requests, and then says that it could not reset its cache.
        with suppress(RuntimeError):
            self.controller.engines[instance].scheduler.reset_prefix_cache(reset_running_requests=True)

    @rule(instance=INSTANCES)
    def restart(self, instance: int) -> None:
        self.controller.engines[instance].close()
        self.controller.restart(instance, self.engine())

    @invariant()
    def no_token_is_wrong(self) -> None:
        if not hasattr(self, "controller"):
            return
        for plan_by_name in (self.controller.plans, self.controller.ended):
            for name, plan in plan_by_name.items():
                answer = self.controller.engines[plan.instance].answers.get(name, [])
                assert answer == answer_to(plan.prompt, plan.max_tokens, self.groups)[: len(answer)], name
        self.controller.ended.clear()

    def teardown(self) -> None:
        if not hasattr(self, "controller"):
            return
        try:
            self.check_the_end()
        finally:
            for engine in self.controller.engines:
                engine.close()
            shutil.rmtree(self.folder.parent)

    def check_the_end(self) -> None:
        controller = self.controller
        for _ in range(20):
            for instance in (0, 1):
                self.run_to_the_end(instance)
                controller.check(instance)
            if controller.settled:
                break
        assert controller.settled, "some copies are never confirmed"
        for name, plan in controller.ended.items():
            answer = controller.engines[plan.instance].answers.get(name, [])
            assert answer == answer_to(plan.prompt, plan.max_tokens, self.groups)[: len(answer)], name
        owned = {key for key, tier in controller.shared if tier is Tier.DISK}
        assert {file.stem for file in self.files()} <= owned, "a file has no owner"
        pages = {copy.pages for (_, tier), copy in controller.shared.items() if tier is Tier.HOST}
        for engine in controller.engines:
            host = engine.worker_side._tiers[Tier.HOST]
            assert {stored.pages for stored in host.nodes()} <= pages, "pages have no owner"
            engine.send(RequestMessage("everything", orders=Orders(everything=True)), [1], 1)
            engine.run_until(lambda engine=engine: engine.idle)
            side = engine.connector._scheduler_side
            assert engine.free_blocks == self.blocks - 1, "blocks are held"
            for kept in (side._states, side._requests, side._loading, side._ended, side._steps):
                assert not kept
            assert not side._transfers.busy
            check_tier(host)
            assert host.nodes() == []
        assert self.files() == []
        assert not list(self.folder.rglob("*.tmp"))

    def run_to_the_end(self, instance: int) -> None:
        engine = self.controller.engines[instance]
        engine.run_until(lambda: engine.idle)
        self.controller.collect(instance)

    def files(self) -> list[Path]:
        return list((self.folder / "kv").rglob("*.safetensors"))


FOLDER = Path(tempfile.mkdtemp(prefix="ragtree-sequences-"))


def teardown_module() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    gc.collect()


class WindowDataPlane(DataPlane):
    groups = (PageGroup(9),)


class TwoKindsDataPlane(DataPlane):
    groups = (PageGroup(), PageGroup(8))


class ThreeKindsDataPlane(DataPlane):
    groups = (PageGroup(6), PageGroup(), PageGroup(17))


class ChunksDataPlane(DataPlane):
    groups = (PageGroup(), PageGroup(12, 1, True))


class TwoSizesDataPlane(DataPlane):
    groups = (PageGroup(0, 2), PageGroup(10))


class StatesDataPlane(DataPlane):
    groups = (PageGroup(0, 2), PageGroup(1, 2, states=True))


class AllKindsDataPlane(DataPlane):
    groups = (PageGroup(1, states=True), PageGroup(), PageGroup(7), PageGroup(1, states=True))


KINDS = [
    pytest.param(DataPlane, id="all tokens"),
    pytest.param(WindowDataPlane, id="a window"),
    pytest.param(TwoKindsDataPlane, id="all tokens and a window"),
    pytest.param(ThreeKindsDataPlane, id="windows of several sizes"),
    pytest.param(ChunksDataPlane, id="all tokens and chunks"),
    pytest.param(TwoSizesDataPlane, id="pages of several sizes"),
    pytest.param(StatesDataPlane, id="all tokens and states"),
    pytest.param(AllKindsDataPlane, id="all tokens, a window and states"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", range(-(-SEQUENCES // BATCH)))
def test_no_sequence_goes_wrong(kind, batch):
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=min(BATCH, SEQUENCES - batch * BATCH),
            stateful_step_count=40,
            deadline=None,
            # Shrinking takes longer than reading a sequence.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    gc.collect()
    assert not OPENED, "something keeps engines that are closed"
