"""``make soak``: a load below capacity for long, with everything going on, and the memory of every process watched."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from loadtest.errors import LoadTestError
from loadtest.locust_process import LocustProcess
from loadtest.options import LoadSettings
from loadtest.reporting.results import Results
from loadtest.reporting.run_facts import folder_for_now
from loadtest.soak.capacity import find_capacity
from loadtest.soak.memory import Bound, Sample, StackProcesses, trends
from loadtest.soak.report import Soak, problems_of, problems_of_memory, write_soak

LOAD_SHARE = 0.8
WARM_UP_S, WARM_UP_SHARE = 300.0, 0.2
_SAMPLE_S = 1.0
_CAPACITY_S, _CAPACITY_QUERIES = 20.0, 10
_ALONE_RATE, _ALONE_S = 0.2, 30.0
_PATIENCE = 3.0
"""How many times as long as without load an answer may take while the stack keeps up."""

_MEANWHILE = ("--disconnect-share", "0.1", "--ingest-rate", "0.2", "--delete-rate", "0.2")


class Held(NamedTuple):
    """A load that was held, and what each process held in memory meanwhile; ``interrupted`` before its time was up."""

    rate: float
    results: Results
    samples: list[Sample]
    interrupted: bool


class Soaking:
    """Loads the stack at ``url``, and keeps all there is to know of it in ``folder``.

    ``options`` go to each load test.
    """

    def __init__(self, url: str, folder: Path, options: Sequence[str]) -> None:
        self._url = url
        self._folder = folder
        self._options = options

    def capacity(self) -> float:
        """The rate that the stack keeps up with, by trying. Raises LoadTestError.

        The objectives are three times what answers take without load, where that is longer than the load test's own:
        those a stack without a GPU does not keep even then.
        """
        alone = self._begin("alone", _ALONE_RATE, _ALONE_S).results().total
        if alone.ttft is None:
            raise LoadTestError("the stack answered nothing though nothing else was asked")
        usual = LoadSettings()
        # Answers of one token have no time between tokens.
        itl_s = alone.itl.mean if alone.itl is not None else 0.0
        objectives = (
            f"--slo-ttft={max(usual.slo_ttft, _PATIENCE * alone.ttft.p90):.3f}",
            f"--slo-itl={max(usual.slo_itl, _PATIENCE * itl_s):.3f}",
        )

        def load(rate: float) -> Results:
            seconds = max(_CAPACITY_S, _CAPACITY_QUERIES / rate)
            return self._begin(f"capacity-{rate:g}", rate, seconds, *objectives).results()

        return find_capacity(load)

    def hold(self, rate: float, seconds: float, processes: StackProcesses) -> Held:
        """Hold the rate; Ctrl-C ends it early, with what there is. Raises LoadTestError."""
        load = self._begin("load", rate, seconds, *_MEANWHILE)
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
            # Locust had it too, and is writing its report.
            interrupted = True
        return Held(rate, load.results(), samples, interrupted)

    def _begin(self, name: str, rate: float, seconds: float, *options: str) -> LocustProcess:
        reports = self._folder / name
        reports.mkdir()
        schedule = ("--schedule", f"{rate:.4f}:{seconds:.1f}")
        return LocustProcess(self._url, reports, [*options, *schedule, *self._options])


def soak(
    locust_options: Annotated[list[str] | None, typer.Argument(help="Further options of the load test.")] = None,
    url: Annotated[str, typer.Option(help="The stack, which must run on this machine.")] = "http://127.0.0.1:8080",
    minutes: Annotated[float, typer.Option(min=0.05, help="How long the load is held.")] = 30.0,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Arrivals a second; by default 80 % of the capacity, found first.")
    ] = None,
    growth_share: Annotated[float, typer.Option(min=0, help="Growth of a process that is still flat.")] = 0.05,
    growth_mib: Annotated[float, typer.Option(min=0, help="The same in MiB; the greater of both counts.")] = 16.0,
    report_dir: Annotated[Path, typer.Option(help="Folder that gets a folder for each run.")] = Path(
        "loadtest-reports"
    ),
) -> None:
    """Exit with 0 if no request failed, none was missed, and the memory of every process stayed flat."""
    try:
        processes = StackProcesses.at(url)
        folder = folder_for_now(report_dir, "soak-")
        soaking = Soaking(url, folder, locust_options or [])
        seconds = minutes * 60
        held = soaking.hold(rate or LOAD_SHARE * soaking.capacity(), seconds, processes)
    except LoadTestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    warm_up = min(WARM_UP_S, WARM_UP_SHARE * seconds)
    bound = Bound(growth_share, growth_mib * 2**20)
    problems = ["it was interrupted"] if held.interrupted else []
    problems += problems_of(held.results) + problems_of_memory(memory := trends(held.samples, warm_up), bound)
    total = held.results.total
    verdict = Soak(rate=held.rate, warm_up=warm_up, bound=bound, problems=problems, queries=total, memory=memory)
    write_soak(verdict, held.samples, folder)
    typer.echo(f"{'passed' if verdict.passed else 'FAILED'}: {folder / 'soak.md'}")
    raise typer.Exit(0 if verdict.passed else 1)
