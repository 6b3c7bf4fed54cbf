"""A stack of real engines on two Ray nodes, which stand for machines: each has folders and an address of its own.

What one has computed, the other one reads at it. A lost machine costs no query, and serves again when it is back.
"""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from stacks import HASHING, START_S, StackUnderTest, come_to, command, until

from services.stack.run_state import RunState

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

ENVIRONMENT = {
    **HASHING,
    "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
    # Copies go to disk at once, where the test can see them.
    "RAGTREE_GENERATOR__KV__HOST_GIB": "0",
    "RAGTREE_GENERATOR__KV__DISK_GIB": "0.2",
    "RAGTREE_CONTROLLER__SWAP": "write_through",
    # An instance that answers takes no other query, so the next one goes to the other machine.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "1",
    "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": "2",
}
ADDRESS = "127.0.0.2"
DOCUMENTS = {
    name: " ".join(f"Fact {number} about {name} is that {name} has {number * seed} lakes." for number in range(40))
    for seed, name in enumerate(("Ruritania", "Freedonia"), start=2)
}
DOCUMENT_TOKENS = 300
"""Less than any of them has."""
READ_AT_PEERS = "ragtree_cache_peer_tokens_total"


class SecondMachine:
    """``ragtree join`` in a process of its own, on a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._log = folder.with_name("second.log")
        own = {"RAGTREE_DATA_DIR": str(folder), "RAGTREE_CLUSTER__HOST": ADDRESS}
        self._environment = {**os.environ, **environment, **own}
        self._process: psutil.Popen | None = None

    def join(self, head: str) -> None:
        with self._log.open("ab") as log:
            self._process = psutil.Popen(
                [sys.executable, "-m", "services.cli", "join", head],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """End all its processes at once, as a power failure does."""
        family = [self._process, *self._process.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family)

    def leave(self) -> None:
        """Have it leave, and check that nothing of it stays."""
        family = self._process.children(recursive=True)
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(90) == 0, self._log.read_text()
        assert [process for process in family if process.is_running()] == []


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The stack, and the machine that joins it while it starts."""
    key = tmp_path_factory.mktemp("key") / "peers-key"
    key.write_text("a secret of both machines")
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {
        **ENVIRONMENT,
        "RAGTREE_CLUSTER__PORT": port,
        "RAGTREE_GENERATOR__KV__PEERS__KEY_FILE": str(key),
    }
    stack = StackUnderTest(tmp_path_factory.mktemp("first"), environment)
    second = SecondMachine(tmp_path_factory.mktemp("second") / "data", environment)
    try:
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(stack.start)
            second.join(until(RunState(stack.folder).running, START_S).ray_address)
            started.result()
        try:
            until(lambda: len(running_on(stack)) == 2, START_S)
            stack.ingest("countries", DOCUMENTS)
            yield stack, second
        finally:
            second.leave()
    finally:
        stack.stop()


def test_one_machine_reads_what_the_other_has_computed_until_it_is_deleted(machines):
    stack, second = machines
    folders = (stack.folder, second.folder)
    assert cached_tokens(stack, "Ruritania") == 0
    until(lambda: any(map(kv_files, folders)))
    with answering(stack, "Ruritania"):
        before = stack.metric(READ_AT_PEERS)
        assert cached_tokens(stack, "Ruritania") > DOCUMENT_TOKENS
        assert stack.metric(READ_AT_PEERS) - before > DOCUMENT_TOKENS
    both = until(lambda: all(map(kv_files, folders)) and [kv_files(folder) for folder in folders])
    assert delete(stack, "Ruritania") >= 1
    assert [len(had - kv_files(folder)) for had, folder in zip(both, folders, strict=True)] == [1, 1]


def test_a_lost_machine_costs_no_query_and_serves_again_when_it_is_back(machines):
    stack, second = machines
    before = kv_files(second.folder)
    stale = until(lambda: served_by_both(stack, "Freedonia") and kv_files(second.folder) - before)
    instances, disks = set(running_on(stack)), places(stack, "disk")
    assert (len(instances), len(disks)) == (2, 2)
    second.kill()
    # Before the controller knows of it, and after.
    assert cached_tokens(stack, "Freedonia") >= 0
    (left,) = until(lambda: len(running_on(stack)) == 1 and set(running_on(stack)))
    assert left in instances
    assert cached_tokens(stack, "Freedonia") > DOCUMENT_TOKENS
    # A machine that is away when a document is deleted is forgotten, and drops its KV when it comes back.
    assert delete(stack, "Freedonia") >= 1
    assert places(stack, "gpu") == {f"gpu@{left}"}
    assert len(places(stack, "disk")) == 1
    second.join(stack.running.ray_address)
    until(lambda: len(running_on(stack)) == 2, START_S)
    assert not stale & kv_files(second.folder)
    until(lambda: served_by_both(stack, "Freedonia"))
    assert places(stack, "disk") == disks


def test_a_machine_with_another_token_or_key_is_refused(machines, tmp_path):
    stack, _ = machines
    (tmp_path / "key").write_text("a secret of someone else")
    for variable, value, told in (
        ("RAY_AUTH_TOKEN", "0" * 64, "refuses this machine's token"),
        ("RAGTREE_GENERATOR__KV__PEERS__KEY_FILE", str(tmp_path / "key"), "another secret"),
    ):
        own = {**stack.environment, "RAGTREE_DATA_DIR": str(tmp_path / "data"), variable: value}
        ran = command("join", stack.running.ray_address, **own)
        assert ran.returncode == 1
        assert told in ran.stderr
        assert "Traceback" not in ran.stderr


def cached_tokens(stack: StackUnderTest, name: str) -> int:
    reply = stack.query(**question(name, 2))
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def question(name: str, max_tokens: int) -> dict:
    return {"query": f"What has {name}?", "collection": "countries", "top_k": 1, "max_tokens": max_tokens}


@contextmanager
def answering(stack: StackUnderTest, name: str):
    """One instance answers for as long as the context is open."""
    with stack.asking(**question(name, 800)) as events:
        come_to(events, "output_text.delta")
        yield


def served_by_both(stack: StackUnderTest, name: str) -> bool:
    """Ask more at once than one instance takes; return whether both have KV of documents then."""
    with ThreadPoolExecutor(4) as asking:
        list(asking.map(lambda _: cached_tokens(stack, name), range(4)))
    return all(held["nodes"] for held in stats(stack)["tiers"] if held["tier"] == "gpu")


def delete(stack: StackUnderTest, name: str) -> int:
    """Delete a document's KV; return in how many nodes it was. Returns when all machines have confirmed it."""
    with stack.client() as client:
        dropped = client.delete(f"/v1/admin/cache/documents/{name}?collection=countries").raise_for_status()
    return dropped.json()["nodes"]


def running_on(stack: StackUnderTest) -> dict[str, int]:
    """Return the number of running requests of each instance that gets any."""
    loads = stats(stack).get("instances", [])
    return {load["instance"]: load["running"] for load in loads if not load["retired"]}


def places(stack: StackUnderTest, tier: str) -> set[str]:
    return {held["place"] for held in stats(stack)["tiers"] if held["tier"] == tier}


def stats(stack: StackUnderTest) -> dict:
    with stack.client() as client:
        answer = client.get("/v1/admin/cache/stats")
    # The controller does not answer while it starts.
    return answer.json() if answer.status_code == 200 else {}


def kv_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.safetensors"))
