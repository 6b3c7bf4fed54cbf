"""``make chaos``: random kills under load, of a stack that is started for it."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from loadtest.chaos.report import write_report
from loadtest.chaos.run import ChaosRun
from loadtest.chaos.settings import ChaosSettings, Engine, Ingress, killable
from loadtest.chaos.victims import Victim
from loadtest.errors import LoadTestError
from loadtest.reporting.run_facts import folder_for_now


def chaos(
    minutes: Annotated[float, typer.Option(min=0, help="How long kills come; each kind comes once in any case.")] = 10,
    rate: Annotated[float, typer.Option(min=0.1, help="Arrivals a second.")] = 4.0,
    ingress: Annotated[Ingress, typer.Option(help="Behind Serve's proxy, or beside it.")] = Ingress.SERVE,
    engine: Annotated[Engine, typer.Option(help="What answers; the fake one is no model.")] = Engine.FAKE,
    victim: Annotated[
        list[Victim] | None, typer.Option(help="Kill this kind; may be given several times. By default all kinds.")
    ] = None,
    overlapping: Annotated[bool, typer.Option(help="Kill while the stack recovers from the kill before.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal orders of kills, and questions.")] = 0,
    pause_s: Annotated[float, typer.Option(min=0, help="Mean pause before a kill.")] = 5.0,
    redis_away_s: Annotated[float, typer.Option(min=0, help="How long Redis is gone each time.")] = 3.0,
    documents: Annotated[int, typer.Option(min=4, help="Documents that are asked about.")] = 40,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    timeout_s: Annotated[float, typer.Option(min=1, help="Longest time that the stack gives a query.")] = 60.0,
    report_dir: Annotated[Path, typer.Option(help="Folder that gets a folder for each run.")] = Path(
        "loadtest-reports"
    ),
) -> None:
    """Exit with 0 if every request came to one end that it may come to, with no wrong answer, and nothing was left."""
    # The stack is stopped whatever ends this.
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
    typer.echo(f"{'FAILED' if happened.problems else 'passed'}: {folder / 'report.md'}")
    raise typer.Exit(1 if happened.problems else 0)


if __name__ == "__main__":
    typer.run(chaos)
