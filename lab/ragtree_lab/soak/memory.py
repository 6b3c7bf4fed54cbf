"""The memory of each process of a stack over time, and whether it grows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psutil

from loadtest.errors import LoadTestError

_LEAST_SAMPLES = 3


class Sample(msgspec.Struct, frozen=True):
    """The memory of a process ``at`` seconds after the start: bytes that no other process shares (USS).

    KV in shared memory and Ray's object store have their own bounds and would count once per process.
    """

    at: float
    pid: int
    name: str
    bytes: int


class Trend(msgspec.Struct, frozen=True):
    """The memory trend of a process: a least-squares line, in bytes at the start and end of the window."""

    pid: int
    name: str
    first: float
    last: float
    seconds: float

    @property
    def growth(self) -> float:
        """The growth in bytes over the window."""
        return self.last - self.first


class Bound(NamedTuple):
    """The largest growth that counts as flat: this share of the memory, or this many bytes if that is more."""

    share: float
    bytes: float

    def holds(self, trend: Trend) -> bool:
        """Return whether a process stayed flat."""
        return trend.growth <= max(self.bytes, self.share * trend.first)


class StackProcesses:
    """The root process of a stack and all its current descendants."""

    def __init__(self, root: psutil.Process) -> None:
        self.root = root

    @classmethod
    def at(cls, url: str) -> "StackProcesses":
        """Find the stack that listens at ``url`` on this machine. Raises LoadTestError if there is none."""
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return cls(psutil.Process(connection.pid))
        raise LoadTestError(
            f"no process of this machine listens at {url}; a soak reads its memory, so it must run here"
        )

    def samples(self, at: float) -> Iterator[Sample]:
        """Yield the current memory of each process."""
        with suppress(psutil.NoSuchProcess):
            for process in [self.root, *self.root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    yield Sample(at, process.pid, _name(process), process.memory_full_info().uss)


def trends(samples: Sequence[Sample], after: float) -> list[Trend]:
    """Return the trends from ``after`` seconds on, largest growth first.

    Processes that lived for less than half of that time are left out.
    """
    window = [sample for sample in samples if sample.at >= after]
    if not window:
        return []
    half = (max(sample.at for sample in window) - after) / 2
    found = []
    for pid, points in by_process(window).items():
        times = [sample.at for sample in points]
        seconds = times[-1] - times[0]
        if len(points) >= _LEAST_SAMPLES and seconds >= half:
            slope, level = np.polyfit(times, [sample.bytes for sample in points], 1)
            first, last = (float(slope * at + level) for at in (times[0], times[-1]))
            found.append(Trend(pid, points[0].name, first, last, seconds))
    return sorted(found, key=lambda trend: -trend.growth)


def by_process(samples: Sequence[Sample]) -> Mapping[int, list[Sample]]:
    """Group samples by process id."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.pid, []).append(sample)
    return found


def _name(process: psutil.Process) -> str:
    name = process.name()
    if name.startswith("python"):
        # Name the script or module. Options before it are Python's.
        return next((part.rsplit("/")[-1] for part in process.cmdline()[1:] if not part.startswith("-")), name)
    # Ray appends the current method to a process's title.
    return name.partition(".")[0]
