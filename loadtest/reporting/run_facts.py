"""The facts of a run: its settings, its command, and the machine that sends the requests."""

import os
import platform
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from loadtest.settings import LoadSettings

FILE_NAME = "run.json"


class Machine(msgspec.Struct, frozen=True):
    """The load test's machine, which may also run the stack. Memory in bytes."""

    system: str
    python: str
    processor: str
    cores: int
    memory: int


class StepFacts(msgspec.Struct, frozen=True):
    """A step of the schedule. ``begin`` and ``seconds`` in seconds."""

    schedule: str
    begin: float
    seconds: float


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a run before its first request. ``seconds`` is the length of the schedule or trace."""

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
        """Read the facts from a run's folder."""
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=cls)


def folder_for_now(reports: Path, prefix: str = "") -> Path:
    """Create a new folder below ``reports``, named after the local time."""
    name = f"{prefix}{datetime.now():%Y%m%d-%H%M%S}"
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = reports / (name + suffix)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise FileExistsError(reports / name)


def machine() -> Machine:
    """Return the facts of this machine."""
    cores, memory = os.cpu_count() or 1, psutil.virtual_memory().total
    return Machine(platform.platform(), platform.python_version(), _processor(), cores, memory)


def command() -> str:
    """Return Locust's command line. It has no keys, because they are in the environment."""
    return shlex.join(["locust", *sys.argv[1:]])


def now() -> str:
    """Return the current time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
