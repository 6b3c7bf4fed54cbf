"""Helpers for real runs of the load test: Locust in its own process."""

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

from loadtest.reporting.request_records import QueryRecord, WriteRecord, read_records

ROOT = Path(__file__).parents[2]


class Ran(NamedTuple):
    """A finished run: its exit status, Locust's statistics, the report's folder and the records."""

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
    """Wait for the end of a run, after Ctrl-C if ``interrupt``."""
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
    """Wait for the end of a process and return its output. Kill it after 50 s."""
    try:
        return process.communicate(timeout=50)[0]
    finally:
        process.kill()


def trace(folder: Path, *lines: tuple[float, str]) -> str:
    """Write a trace of timed questions and return its path."""
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode({"at": at, "query": query}) + b"\n" for at, query in lines))
    return str(path)


def until(condition: Callable[[], object], timeout_s: float) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
