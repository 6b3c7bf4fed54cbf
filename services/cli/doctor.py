"""``ragtree doctor``: examines this machine, the model and the engine."""

import asyncio
import atexit
import os
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from examine.doctor.outcome import CheckResult, Diagnosis, Status
from examine.signals import ended_by_signals
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from services.cli.connection import JsonOption
from services.cli.output import StepBars, errors, print_json, results
from services.config import Config, load_config
from services.model import kv_settings
from services.stack.run_state import RunState

_COLOURS = {Status.PASSED: "green", Status.FAILED: "bold red", Status.WARNING: "yellow", Status.SKIPPED: "dim"}
_BUSY_SAMPLE_S = 1.0


def doctor(
    model: Annotated[
        str | None, typer.Option(help="The model to examine; by default the configured one (generator.model).")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="File to which what the engines print is added.")] = None,
    thorough: Annotated[
        bool,
        typer.Option(
            help="Then prove on this machine's GPU that KV survives its way through it: in each layout, from each "
            "tier, and after faults. Weights are random. It takes ten more minutes, and needs ragtree-lab."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Examine this machine, the model and the engine in minutes. The exit code is 0 only if no check fails."""
    from cachectl.runtime.composing import GateFolder
    from examine.doctor.context import Context, Surroundings
    from examine.doctor.examination import Examination, standard_checks
    from examine.doctor.workplace import Workplace
    from generator.models import ModelStore

    config = load_config()
    settings = _settings(config, model)
    prove = _proof() if thorough else None
    atexit.register(_silence)
    with ended_by_signals(), Workplace(settings.kv, log) as place:
        running = RunState(config.data_dir).running()
        busy = psutil.cpu_percent(interval=_BUSY_SAMPLE_S) / 100
        surroundings = Surroundings(running.url if running is not None else None, busy)
        with place.log.capturing() as terminal, StepBars(console=Console(file=terminal)) as show:
            context = Context(settings, ModelStore(config.cache_dir), place, surroundings, show)
            diagnosis = asyncio.run(Examination(standard_checks(GateFolder(config.cache_dir))).run(context, show))
    if prove is not None and diagnosis.passed:
        diagnosis = Diagnosis.of([*diagnosis.checks, *prove()])
    if as_json:
        print_json(diagnosis)
    else:
        _print(diagnosis)
    if not diagnosis.passed:
        first = diagnosis.failures[0]
        errors.print(f"[bold red]{first.name}:[/] ", end="")
        errors.print(first.why, markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _settings(config: Config, model: str | None) -> GeneratorSettings:
    """Return the settings of the engine to examine. Raises ConfigError if it has no engine."""
    changes = {"kv": kv_settings(config)} | ({"model": model} if model is not None else {})
    if config.generator.engine != "vllm":
        raise ConfigError("the doctor examines vLLM, but generator.engine is fake: set it to vllm", "generator.engine")
    return config.generator.model_copy(update=changes)


def _proof() -> Callable[[], Sequence[CheckResult]]:
    """Return what proves KV on a GPU, which another package brings. Raises ConfigError if none is installed."""
    for proof in entry_points(group="ragtree.proofs"):
        loaded: Callable[[], Sequence[CheckResult]] = proof.load()
        return loaded
    raise ConfigError("--thorough needs ragtree-lab, which is the folder lab/ of RAGTree's sources", "thorough")


def _print(diagnosis: Diagnosis) -> None:
    table = Table("check", "result", "figure")
    for check in diagnosis.checks:
        colour = _COLOURS[check.status]
        table.add_row(check.name, f"[{colour}]{check.status}[/]", check.figure or check.why)
    results.print(table)
    # The first failure is the last line, on standard error.
    for check in [*(check for check in diagnosis.checks if check.status is Status.WARNING), *diagnosis.failures[1:]]:
        results.print(f"{check.name}: {check.why}", markup=False, soft_wrap=True)


def _silence() -> None:
    """Drop what vLLM's objects still say when Python's end finds them: the last line is the doctor's."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
