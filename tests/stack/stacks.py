"""Stacks under test, and helpers to query them over HTTP."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from filelock import FileLock
from httpx_sse import connect_sse
from processes import descendants, engines_under

from protocol.documents import UNFINISHED
from services.stack.run_state import RunningStack, StackProcess

_CORES = Path(tempfile.gettempdir()) / f"ragtree-tests-{os.getuid()}.lock"

Ran = subprocess.CompletedProcess[str]

PATIENCE_S = 300
"""For starts and other waits: a guard against a hang. Beside other tests, a start has taken three times its usual."""
POLL_S = 0.05

HASHING = {"RAGTREE_RETRIEVER__EMBEDDER": '{"kind": "hashing"}'}
"""An embedder without a model: the retriever needs no torch, so a stack starts in half the time."""

SMALL_ENGINE = {
    "RAGTREE_GENERATOR__ENGINE_ARGS": '{"block_size": 32, "num_gpu_blocks_override": 256}',
    "RAGTREE_GENERATOR__KV__HOST_GIB": "0.25",
}
"""An engine whose KV cache has 8,192 tokens. Ray kills the processes of a stack when a machine runs out of memory."""

FAKE = {
    **HASHING,
    "RAGTREE_GENERATOR__ENGINE": "fake",
    "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "200",
    "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": "20000",
}

FREEDONIA = "The capital of Freedonia is Marxville, a town of three thousand people, founded in 1932 by Rufus Firefly."
SYLVANIA = "The capital of Sylvania is Trentino, which lies on a lake and is known for its peanuts and lemonade."


DOCUMENT_TOKENS = 300
"""Less than any of ``long_documents`` has."""


def long_documents(*names: str) -> dict[str, str]:
    """Documents of 40 sentences about these names."""
    return {
        name: " ".join(f"Fact {number} about {name} is that {name} has {number * seed} lakes." for number in range(40))
        for seed, name in enumerate(names, start=2)
    }


def command(*arguments: str, timeout_s: float = 120, cwd: Path | None = None, **environment: str) -> Ran:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def cores() -> FileLock:
    """What starts a stack or keeps one busy holds this lock: two starts side by side take longer than in turn."""
    return FileLock(_CORES)


class StackUnderTest:
    """One stack on a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {"RAGTREE_SERVER__PORT": "0", **environment}
        self.process = StackProcess(folder, self.environment, own_session=False)
        self.running: RunningStack | None = None

    def command(self, *arguments: str, **environment: str) -> Ran:
        """Run a command on this stack's folder."""
        return command(*arguments, **{"RAGTREE_DATA_DIR": str(self.folder), **environment})

    def start(self, **changed: str) -> None:
        """Start it; ``changed`` variables stay changed."""
        if changed:
            self.environment |= changed
            self.process = StackProcess(self.folder, self.environment, own_session=False)
        with cores():
            self.running = self.process.start(PATIENCE_S)

    def stop(self) -> bool:
        return self.process.stop()

    def interrupt(self) -> None:
        """Stop it like Ctrl-C."""
        assert self.running is not None
        process = psutil.Process(self.running.pid)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        assert self.running is not None
        return self.running.url

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            yield client

    def ingest(self, collection: str, documents: dict[str, str]) -> None:
        lines = "\n".join(json.dumps({"id": key, "text": text}) for key, text in documents.items())
        with self.client() as client:
            path = f"/v1/collections/{collection}/documents:batch"
            job = client.post(path, content=lines, headers={"Content-Type": "application/x-ndjson"})
            assert job.status_code == 202, job.text
            ended = until(lambda: ended_job(client, job.json()["job_id"]))
            assert ended["failed_documents"] == 0

    def log(self, lines: int) -> str:
        """Return the last lines of its log."""
        file = self.folder / "run" / "stack.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def query(self, **body: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("/query", json=body)

    @contextmanager
    def asking(self, **body: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Stream a query's events. Leaving the context disconnects."""
        with self.client() as client, connect_sse(client, "POST", "/query", json={**body, "stream": True}) as source:
            source.response.raise_for_status()
            yield (event.json() for event in source.iter_sse())

    def events(self, **body: Any) -> list[dict[str, Any]]:
        with self.asking(**body) as events:
            return list(events)

    def metric(self, name: str) -> float:
        """Return a metric without labels, or with the labels of its name. There must be exactly one."""
        (value,) = self._samples(f"{name} ")
        return value

    def metric_of_all(self, name: str) -> float:
        """Return a metric's sum over its labels."""
        values = self._samples(f"{name}{{")
        assert values, f"no {name} has labels"
        return sum(values)

    def _samples(self, start: str) -> list[float]:
        with self.client() as client:
            lines = client.get("/metrics").raise_for_status().text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(start)]

    def processes(self, named: str) -> list[psutil.Process]:
        """Return the stack's processes whose title or command line contains ``named``."""
        return descendants(self._root(), named)

    def engines(self) -> set[psutil.Process]:
        """Return the processes of vLLM's engines."""
        return engines_under(self._root())

    def is_ready(self) -> bool:
        with self.client() as client:
            return client.get("/readyz").status_code == 200

    def _root(self) -> psutil.Process:
        assert self.running is not None
        return psutil.Process(self.running.pid)


@contextmanager
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, str], str], StackUnderTest]]:
    """Yield a function that starts a stack with these variables in a folder of this name. Stop all at the end."""
    started: list[StackUnderTest] = []

    def start(environment: dict[str, str], name: str) -> StackUnderTest:
        stack = StackUnderTest(tmp_path_factory.mktemp(name), environment)
        started.append(stack)
        stack.start()
        return stack

    try:
        yield start
    finally:
        with ThreadPoolExecutor() as stopping:
            list(stopping.map(StackUnderTest.stop, started))


def processes_on(folder: Path) -> list[psutil.Process]:
    """Return every process of the stack on this data folder, orphans included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("RAGTREE_DATA_DIR") == str(folder):
                found.append(process)
    return found


def come_to(events: Iterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Read up to the next event of a kind and return it."""
    seen = []
    for event in events:
        seen.append(event["type"])
        if event["type"] == kind:
            return event
    raise AssertionError(f"the stream ended without {kind}: {seen}")


def ended_job(client: httpx.Client, job_id: str) -> dict[str, Any] | None:
    job = client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
    return None if job["status"] in UNFINISHED else job


def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait for a true result and return it."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(POLL_S)
    return value


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without the fields that differ between equal requests."""
    changed = {
        "query_id": None,
        "created_at": None,
        "timings": sorted(response["timings"]),
        "usage": {**response["usage"], "prompt_tokens_details": None},
        "reranking": response["reranking"] and {**response["reranking"], "elapsed_ms": None},
    }
    return {**response, **changed}
