"""``make chaos``: random kills under load, in a stack that is started for it."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from loadtest.errors import LoadTestError
from loadtest.reporting.run_facts import folder_for_now
from ragtree_lab.chaos.chaos_report import write_report
from ragtree_lab.chaos.chaos_run import ChaosRun
from ragtree_lab.chaos.settings import ChaosSettings, Engine, Ingress, killable
from ragtree_lab.chaos.victims import Victim


def chaos(
    minutes: Annotated[float, typer.Option(min=0, help="Duration of the kills, at least one per kind.")] = 10,
    rate: Annotated[float, typer.Option(min=0.1, help="Arrivals per second.")] = 4.0,
    ingress: Annotated[Ingress, typer.Option(help="serve: behind Serve's proxy. uvicorn: no proxy.")] = Ingress.SERVE,
    engine: Annotated[Engine, typer.Option(help="The engine. fake runs no model.")] = Engine.FAKE,
    victim: Annotated[
        list[Victim] | None, typer.Option(help="Kind of process to kill. May be repeated. Default: all kinds.")
    ] = None,
    overlapping: Annotated[bool, typer.Option(help="Kill again during a recovery.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal questions and kills in equal order.")] = 0,
    pause_s: Annotated[float, typer.Option(min=0, help="Mean pause before a kill.")] = 5.0,
    redis_away_s: Annotated[float, typer.Option(min=0, help="How long Redis stays away after each kill.")] = 3.0,
    documents: Annotated[int, typer.Option(min=4, help="Number of documents to query.")] = 40,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 32,
    timeout_s: Annotated[float, typer.Option(min=1, help="The stack's timeout for a query.")] = 60.0,
    report_dir: Annotated[Path, typer.Option(help="Folder for the folders of runs.")] = Path("loadtest-reports"),
) -> None:
    """Exit with 0 if every request ended in an allowed way, no answer was wrong, and no process was left."""
    # SIGTERM also stops the stack.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        settings = ChaosSettings(
            minutes=minutes,
            rate=rate,
            seed=seed,
            ingress=ingress,
            engine=engine,
            victims=tuple(victim or killable(ingress)),
            overlapping=overlapping,
            pause_s=pause_s,
            redis_away_s=redis_away_s,
            documents=documents,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
        )
        folder = folder_for_now(report_dir, "chaos-")
        happened = ChaosRun(settings, folder).run()
    except LoadTestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    write_report(happened, settings, folder)
    for problem in happened.problems:
        typer.echo(problem, err=True)
    typer.echo(f"{'FAILED' if happened.problems else 'passed'}: {folder / 'report.md'}")
    raise typer.Exit(1 if happened.problems else 0)


if __name__ == "__main__":
    typer.run(chaos)
