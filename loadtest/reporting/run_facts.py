"""What a run was: its settings, its command, and the machine that sent the requests."""

import os
import platform
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from loadtest.options import LoadSettings

FILE_NAME = "run.json"


class Machine(msgspec.Struct, frozen=True):
    """The machine of the load test, which may be the stack's, too. Memory in bytes."""

    system: str
    python: str
    processor: str
    cores: int
    memory: int


class StepFacts(msgspec.Struct, frozen=True):
    """A part of the schedule; ``begin`` and ``seconds`` in seconds."""

    schedule: str
    begin: float
    seconds: float


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run before its first request. ``seconds``: what the schedule or the trace takes."""

    url: str
    model: str
    started_at: str
    command: str
    machine: Machine
    settings: LoadSettings
    collection: str | None
    steps: tuple[StepFacts, ...]
    seconds: float

    def write(self, folder: Path) -> None:
        """Write the facts into the run's folder."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=2)
        (folder / FILE_NAME).write_bytes(text + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "RunFacts":
        """The facts of a run's folder."""
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=cls)


def folder_for_now(reports: Path, prefix: str = "") -> Path:
    """A new folder under ``reports``, named by the local time."""
    name = f"{prefix}{datetime.now():%Y%m%d-%H%M%S}"
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = reports / (name + suffix)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise FileExistsError(reports / name)


def machine() -> Machine:
    """The machine this runs on."""
    cores, memory = os.cpu_count() or 1, psutil.virtual_memory().total
    return Machine(platform.platform(), platform.python_version(), _processor(), cores, memory)


def command() -> str:
    """Locust's command line. Keys come by environment, so it has none."""
    return shlex.join(["locust", *sys.argv[1:]])


def now() -> str:
    """The time of day, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
