"""``make fuzz``: everything that strangers can send, against a real engine, with a second tenant as the judge."""

import asyncio
import logging
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import psutil
import typer

from loadtest.errors import BadOption, LoadTestError
from loadtest.reporting.run_facts import folder_for_now
from ragtree_lab.fuzz.fuzz_report import FuzzReport, write_fuzz_report
from ragtree_lab.fuzz.fuzz_run import FuzzRun, FuzzSettings
from ragtree_lab.fuzz.fuzzed_stack import OWN_KEYS, Keys, new_stack
from ragtree_lab.fuzz.keeper import kept
from ragtree_lab.fuzz.replay import Repeated, Replay
from ragtree_lab.fuzz.sender import Sender
from ragtree_lab.fuzz.sources import REAL, lanes_of
from ragtree_lab.fuzz.watcher import Watcher
from ragtree_lab.soak.memory import StackProcesses


class _Target(NamedTuple):
    """A stack to attack. ``left`` has the processes that outlived it, once it was stopped."""

    url: str
    keys: Keys
    root: psutil.Process | None
    left: list[str]


def fuzz(
    minutes: Annotated[float, typer.Option(min=0.05, help="Duration of the attack.")] = 10.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Equal seeds give equal inputs. Default: a new one.")] = None,
    url: Annotated[str | None, typer.Option(help="A running stack. Default: one that is started for the run.")] = None,
    stranger_key: Annotated[str, typer.Option(envvar="RAGTREE_FUZZ_STRANGER_KEY", help="With --url.")] = "",
    judge_key: Annotated[str, typer.Option(envvar="RAGTREE_FUZZ_JUDGE_KEY", help="With --url: another tenant's.")] = "",
    admin_key: Annotated[str, typer.Option(envvar="RAGTREE_FUZZ_ADMIN_KEY", help="With --url.")] = "",
    files: Annotated[list[Path] | None, typer.Option(help="Folder of more real files. May be repeated.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this lane or source. May be repeated.")] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Most inputs of each lane.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Send what a folder keeps again, one input at a time.")] = None,
    report_dir: Annotated[Path, typer.Option(help="Folder for the folders of runs.")] = Path("loadtest-reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Exit with 0 if nothing broke, with 1 if something did, and with 2 if the campaign could not run."""
    # SIGTERM also stops the stack.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # httpx would log every question of the judge.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        folder = folder_for_now(report_dir, "fuzz-")
        chosen = seed if seed is not None else secrets.randbelow(2**31)
        lanes = lanes_of(only or ())
        settings = FuzzSettings(chosen, minutes * 60, (*REAL, *(files or ())), most=most, lanes=lanes)
        with _target(url, Keys(stranger_key, judge_key, admin_key), folder) as target:
            if replay is not None:
                raise typer.Exit(_repeated(replay, target))
            typer.echo(f"seed {chosen}; what breaks something is kept in {folder / 'kept'}", err=True)
            report = asyncio.run(FuzzRun(settings, target.url, target.keys, target.root, folder).run())
        report = msgspec.structs.replace(report, left=target.left)
    except LoadTestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    write_fuzz_report(report, folder)
    typer.echo(msgspec.json.encode(report).decode() if as_json else _summary(report, folder))
    raise typer.Exit(1 if report.broke else 0)


@contextmanager
def _target(url: str | None, keys: Keys, folder: Path) -> Iterator[_Target]:
    """The stack at ``url``, or a new one that is stopped at the end."""
    if url is not None:
        if not all(keys):
            raise BadOption("--url needs --stranger-key, --judge-key and --admin-key")
        yield _Target(url, keys, _root_at(url), [])
        return
    with tempfile.TemporaryDirectory(prefix="ragtree-fuzz-") as scratch:
        stack = new_stack(Path(scratch), folder / "stack.log")
        left: list[str] = []
        try:
            stack.start()
            yield _Target(stack.url, OWN_KEYS, _root_at(stack.url), left)
        finally:
            left += stack.stop()


def _root_at(url: str) -> psutil.Process | None:
    try:
        return StackProcesses.at(url).root
    except LoadTestError:
        logging.getLogger(__name__).warning("the stack runs on another machine: its processes are not watched")
        return None


def _repeated(folder: Path, target: _Target) -> int:
    findings = kept(folder)
    if not findings:
        raise BadOption(f"{folder} keeps no finding")

    async def repeat() -> list[Repeated]:
        watcher = Watcher(target.url, target.root, lambda what: typer.echo(what, err=True))
        watcher.start()
        try:
            return await Replay(Sender(target.url, target.keys.of_callers), watcher).repeat(findings)
        finally:
            watcher.close()

    repeated = asyncio.run(repeat())
    for each in repeated:
        said = "; ".join(each.broke) or "nothing broke"
        typer.echo(f"{each.drawn.source} number {each.drawn.number}: {said} ({', '.join(each.answers[:3])})")
    return 1 if any(each.broke for each in repeated) else 0


def _summary(report: FuzzReport, folder: Path) -> str:
    lines = [f"{count} times {what}" for what, count in report.findings.items()]
    requests = sum(report.requests.values())
    lines.append(f"{requests:,} requests, {report.files:,} files, seed {report.seed}")
    lines.append(f"{'something BROKE' if report.broke else 'passed'}: {folder / 'report.md'}")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(fuzz)
