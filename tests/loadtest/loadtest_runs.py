"""Real runs of the load test: Locust, headless, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadtest.reporting.records import QueryRecord, WriteRecord, read_records

ROOT = Path(__file__).parents[2]


class Ran(NamedTuple):
    """A run that has ended: its exit status, Locust's own statistics, the report's folder and its records."""

    returncode: int
    log: str
    stats: dict[str, dict[str, Any]]
    folder: Path
    queries: list[QueryRecord]
    writes: list[WriteRecord]

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / "results.json").read_text())


def begin(folder: Path, url: str, *options: str, headless: bool = True, **environment: str) -> "subprocess.Popen[str]":
    """Start Locust as a user does."""
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--only-summary"]
    command += ["--headless"] if headless else []
    files = ["--report-dir", str(folder), "--json-file", str(folder / "stats")]
    return subprocess.Popen(
        [*command, "--host", url, *files, *options],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: "subprocess.Popen[str]", folder: Path, interrupt: bool = False) -> Ran:
    """Wait until it has ended, after Ctrl-C or by itself."""
    if interrupt:
        process.send_signal(signal.SIGINT)
    log = log_of(process)
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    records = read_records(run)
    rows = json.loads((folder / "stats.json").read_text())
    return Ran(
        process.returncode,
        log,
        {f"{row['method']} {row['name']}": row for row in rows},
        run,
        [record for record in records if isinstance(record, QueryRecord)],
        [record for record in records if isinstance(record, WriteRecord)],
    )


def log_of(process: "subprocess.Popen[str]") -> str:
    """What it has written when it has ended by itself; it ends in any case."""
    try:
        return process.communicate(timeout=50)[0]
    finally:
        process.kill()


def trace(folder: Path, *lines: tuple[float, str]) -> str:
    """The path of a trace that asks each question at its time."""
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode({"at": at, "query": query}) + b"\n" for at, query in lines))
    return str(path)


def until(condition: Callable[[], object], timeout_s: float) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
