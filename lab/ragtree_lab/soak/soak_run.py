"""The load of a soak: find the capacity, then hold a load and record the memory of every process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.errors import LoadTestError
from loadtest.locust_process import LocustProcess
from loadtest.reporting.results import Results
from loadtest.settings import LoadSettings
from ragtree_lab.soak.capacity import find_capacity
from ragtree_lab.soak.memory import Sample, StackProcesses

_SAMPLE_S = 1.0
_CAPACITY_S, _CAPACITY_QUERIES = 20.0, 10
_UNLOADED_RATE, _UNLOADED_S = 0.2, 30.0
_SLOWDOWN = 3.0
"""An answer under load may take this many times as long as without load."""

_OTHER_TRAFFIC = ("--disconnect-share", "0.1", "--ingest-rate", "0.2", "--delete-rate", "0.2")


class HeldLoad(NamedTuple):
    """A load that was held, with the memory of each process. ``interrupted`` if it ended early."""

    rate: float
    results: Results
    samples: list[Sample]
    interrupted: bool


class SoakRun:
    """Loads the stack at ``url`` and writes everything into ``folder``.

    ``options`` are passed to each load test.
    """

    def __init__(self, url: str, folder: Path, options: Sequence[str]) -> None:
        self._url = url
        self._folder = folder
        self._options = options

    def capacity(self) -> float:
        """Measure the arrival rate that the stack keeps up with. Raises LoadTestError.

        The objectives are three times the latencies without load, or the load test's defaults if those are longer. A
        stack without a GPU would miss the defaults even without load.
        """
        unloaded = self._begin("alone", _UNLOADED_RATE, _UNLOADED_S).results().total
        if unloaded.ttft is None:
            raise LoadTestError("the stack answered no query even without load")
        defaults = LoadSettings()
        # Answers with a single token have no ITL.
        itl_s = unloaded.itl.mean if unloaded.itl is not None else 0.0
        objectives = (
            f"--slo-ttft={max(defaults.slo_ttft, _SLOWDOWN * unloaded.ttft.p90):.3f}",
            f"--slo-itl={max(defaults.slo_itl, _SLOWDOWN * itl_s):.3f}",
        )

        def load(rate: float) -> Results:
            seconds = max(_CAPACITY_S, _CAPACITY_QUERIES / rate)
            return self._begin(f"capacity-{rate:g}", rate, seconds, *objectives).results()

        return find_capacity(load)

    def hold(self, rate: float, seconds: float, processes: StackProcesses) -> HeldLoad:
        """Hold the rate. Ctrl-C ends it early and keeps the results so far. Raises LoadTestError."""
        load = self._begin("load", rate, seconds, *_OTHER_TRAFFIC)
        samples: list[Sample] = []
        interrupted = False
        try:
            while load.folder is None and not load.ended(_SAMPLE_S):
                pass
            begin = time.monotonic()
            with (self._folder / "memory.jsonl").open("wb") as file:
                while not load.ended(_SAMPLE_S):
                    now = list(processes.samples(time.monotonic() - begin))
                    file.writelines(msgspec.json.encode(sample) + b"\n" for sample in now)
                    file.flush()
                    samples += now
        except KeyboardInterrupt:
            # Locust got the signal too and is writing its report.
            interrupted = True
        return HeldLoad(rate, load.results(), samples, interrupted)

    def _begin(self, name: str, rate: float, seconds: float, *options: str) -> LocustProcess:
        reports = self._folder / name
        reports.mkdir()
        schedule = ("--schedule", f"{rate:.4f}:{seconds:.1f}")
        return LocustProcess(self._url, reports, [*options, *schedule, *self._options])
