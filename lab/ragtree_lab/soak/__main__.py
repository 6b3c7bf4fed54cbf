"""``make soak``: hold a load and check the memory of every process of the stack."""

from pathlib import Path
from typing import Annotated

import typer

from loadtest.errors import LoadTestError
from loadtest.reporting.run_facts import folder_for_now
from ragtree_lab.soak.memory import Bound, StackProcesses, trends
from ragtree_lab.soak.soak_report import SoakVerdict, memory_problems, request_problems, write_soak
from ragtree_lab.soak.soak_run import SoakRun

LOAD_SHARE = 0.8
"""The share of the capacity that is held by default."""
WARM_UP_S, WARM_UP_SHARE = 300.0, 0.2
"""The warm-up is this long, or this share of a shorter run."""


def soak(
    locust_options: Annotated[list[str] | None, typer.Argument(help="Further options of the load test.")] = None,
    url: Annotated[str, typer.Option(help="The stack. It must run on this machine.")] = "http://127.0.0.1:8080",
    minutes: Annotated[float, typer.Option(min=0.05, help="Duration of the load.")] = 30.0,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Arrivals per second. Default: 80 % of the measured capacity.")
    ] = None,
    growth_share: Annotated[float, typer.Option(min=0, help="Largest growth of a process that counts as flat.")] = 0.05,
    growth_mib: Annotated[float, typer.Option(min=0, help="The same in MiB. The larger of both applies.")] = 16.0,
    report_dir: Annotated[Path, typer.Option(help="Folder for the folders of runs.")] = Path("loadtest-reports"),
) -> None:
    """Exit with 0 if no request failed or was missed and the memory of every process stayed flat."""
    try:
        processes = StackProcesses.at(url)
        folder = folder_for_now(report_dir, "soak-")
        run = SoakRun(url, folder, locust_options or [])
        seconds = minutes * 60
        load = run.hold(rate or LOAD_SHARE * run.capacity(), seconds, processes)
    except LoadTestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    warm_up = min(WARM_UP_S, WARM_UP_SHARE * seconds)
    bound = Bound(growth_share, growth_mib * 2**20)
    memory = trends(load.samples, warm_up)
    problems = ["the soak was interrupted"] if load.interrupted else []
    problems += request_problems(load.results) + memory_problems(memory, bound)
    total = load.results.total
    verdict = SoakVerdict(rate=load.rate, warm_up=warm_up, bound=bound, problems=problems, queries=total, memory=memory)
    write_soak(verdict, load.samples, folder)
    typer.echo(f"{'passed' if verdict.passed else 'FAILED'}: {folder / 'soak.md'}")
    raise typer.Exit(0 if verdict.passed else 1)


if __name__ == "__main__":
    typer.run(soak)
