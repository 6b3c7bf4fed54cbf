"""``make soak``: a load below capacity for long, with everything going on, and the memory of every process watched."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from loadtest.capacity import find_capacity
from loadtest.errors import LoadTestError
from loadtest.locust_process import LocustProcess
from loadtest.memory import Bound, Sample, StackProcesses, trends
from loadtest.results import Results
from loadtest.run_facts import folder_for_now
from loadtest.soak_report import Soak, write_soak

LOAD_SHARE = 0.8
WARM_UP_S, WARM_UP_SHARE = 300.0, 0.2
_SAMPLE_S = 1.0
_CAPACITY_S = 20.0
_MEANWHILE = ("--disconnect-share", "0.1", "--ingest-rate", "0.2", "--delete-rate", "0.2")


class Soaking:
    """Loads the stack at ``url``, and keeps all there is to know of it in ``folder``.

    ``options`` go to each load test.
    """

    def __init__(self, url: str, folder: Path, options: Sequence[str]) -> None:
        self._url = url
        self._folder = folder
        self._options = options

    def capacity(self) -> float:
        """The rate that the stack keeps up with, by trying. Raises LoadTestError."""
        return find_capacity(lambda rate: self._begin(f"capacity-{rate:g}", rate, _CAPACITY_S).results())

    def hold(self, rate: float, seconds: float, processes: StackProcesses) -> tuple[Results, list[Sample]]:
        """Hold the rate; what came of it, and what each process held meanwhile.

        Ctrl-C ends it early, with what there is. Raises LoadTestError.
        """
        load = self._begin("load", rate, seconds, *_MEANWHILE)
        samples: list[Sample] = []
        with _until_interrupted(), (self._folder / "memory.jsonl").open("wb") as file:
            while load.folder is None and not load.ended(_SAMPLE_S):
                pass
            begin = time.monotonic()
            while not load.ended(_SAMPLE_S):
                now = list(processes.samples(time.monotonic() - begin))
                file.writelines(msgspec.json.encode(sample) + b"\n" for sample in now)
                samples += now
        return load.results(), samples

    def _begin(self, name: str, rate: float, seconds: float, *options: str) -> LocustProcess:
        reports = self._folder / name
        reports.mkdir()
        schedule = ("--schedule", f"{rate:.4f}:{seconds:.1f}")
        return LocustProcess(self._url, reports, [*options, *schedule, *self._options])


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # Locust had it too, and is writing its report.
        return


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
        held = rate or LOAD_SHARE * soaking.capacity()
        seconds = minutes * 60
        results, samples = soaking.hold(held, seconds, processes)
    except LoadTestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    warm_up = min(WARM_UP_S, WARM_UP_SHARE * seconds)
    bound = Bound(growth_share, growth_mib * 2**20)
    verdict = Soak.of(held, warm_up, bound, results, trends(samples, warm_up))
    write_soak(verdict, samples, folder)
    typer.echo(f"{'passed' if verdict.passed else 'FAILED'}: {folder / 'soak.md'}")
    raise typer.Exit(0 if verdict.passed else 1)


if __name__ == "__main__":
    typer.run(soak)
