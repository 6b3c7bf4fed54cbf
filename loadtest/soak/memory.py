"""How much memory each process of a stack holds for itself, second by second, and whether that grows."""

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
    """What a process held ``at`` seconds after the begin: bytes that no other process shares (USS).

    KV in shared memory and Ray's object store are bounded on their own, and would count once for each process.
    """

    at: float
    pid: int
    name: str
    bytes: int


class Trend(msgspec.Struct, frozen=True):
    """How a process's memory went: bytes at the window's begin and end on the line of least squares."""

    pid: int
    name: str
    first: float
    last: float
    seconds: float

    @property
    def growth(self) -> float:
        """Bytes more at the end than at the begin."""
        return self.last - self.first


class Bound(NamedTuple):
    """The growth that is still flat: this share of what was held, and at least so many bytes."""

    share: float
    bytes: float

    def holds(self, trend: Trend) -> bool:
        """Whether a process is flat."""
        return trend.growth <= max(self.bytes, self.share * trend.first)


class StackProcesses:
    """The process at the root of a stack, and all below it as they come and go."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root

    @classmethod
    def at(cls, url: str) -> "StackProcesses":
        """Those of the stack that listens at ``url`` on this machine. Raises LoadTestError if none does."""
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return cls(psutil.Process(connection.pid))
        raise LoadTestError(f"no process of this machine listens at {url}; its memory is watched, so it must run here")

    def samples(self, at: float) -> Iterator[Sample]:
        """What each holds now."""
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    yield Sample(at, process.pid, _name(process), process.memory_full_info().uss)


def trends(samples: Sequence[Sample], after: float) -> list[Trend]:
    """The trends from ``after`` seconds on, those that grow most first.

    Processes that were not there for half of that time are left out.
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
    """The samples of each process, by its id."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.pid, []).append(sample)
    return found


def _name(process: psutil.Process) -> str:
    name = process.name()
    if name.startswith("python"):
        # The script or module that it runs; options before it are Python's own.
        return next((part.rsplit("/")[-1] for part in process.cmdline()[1:] if not part.startswith("-")), name)
    # Ray's titles end in the method that runs just now.
    return name.partition(".")[0]
