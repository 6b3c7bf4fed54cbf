"""The report of a campaign."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.reporting.markdown_table import table
from loadtest.reporting.run_facts import Machine
from loadtest.reporting.summary import Spread
from ragtree_lab.fuzz.fuzzed_stack import STRANGERS_LIMITS
from ragtree_lab.fuzz.judge import JudgedQuestion

_MIB = 2**20


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge saw on the idle stack and during the campaign. Times in seconds.

    ``near`` are right answers with another text from a token on that was as likely as the idle stack's.
    """

    asked: int
    near: int
    wrong: dict[str, int]
    idle: Spread | None
    during: Spread | None
    idle_ttft: Spread | None
    during_ttft: Spread | None
    upload_s: float | None

    @classmethod
    def of(cls, idle: Sequence[JudgedQuestion], during: Sequence[JudgedQuestion], upload_s: float | None) -> "Judged":
        """Count the judge's questions. Times are those of right answers."""
        wrong: dict[str, int] = {}
        for each in during:
            if each.wrong is not None:
                wrong[each.wrong] = wrong.get(each.wrong, 0) + 1
        right = [each for each in during if each.wrong is None]
        return cls(
            asked=len(during),
            near=sum(each.near for each in during),
            wrong=wrong,
            idle=Spread.of([each.total for each in idle]),
            during=Spread.of([each.total for each in right]),
            idle_ttft=_ttft(idle),
            during_ttft=_ttft(right),
            upload_s=upload_s,
        )

    @property
    def slowdown(self) -> float | None:
        """The p99 during the campaign, in those of the idle stack."""
        return None if self.idle is None or self.during is None else self.during.p99 / self.idle.p99


class FuzzReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``results.json``. Times in seconds, memory in MiB.

    ``drained_s`` is how long after the attack the controller had no query left, None if it still had some. ``left`` are
    the processes that outlived the stack.
    """

    seed: int
    interrupted: bool
    seconds: float
    requests: dict[str, int]
    inputs: dict[str, int]
    files: int
    statuses: dict[str, int]
    findings: dict[str, int]
    ended_processes: int
    longest_stall_s: float
    longest_lateness_s: float
    memory_mib: dict[str, tuple[int, int, int]]
    judge: Judged
    drained_s: float | None
    left: list[str]
    machine: Machine

    @property
    def broke(self) -> bool:
        """Whether anything broke."""
        undrained = self.drained_s is None and not self.interrupted
        return bool(self.findings or self.left or self.judge.wrong or undrained)


def write_fuzz_report(report: FuzzReport, folder: Path) -> None:
    """Write ``results.json`` and ``report.md``."""
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    (folder / "report.md").write_text(_render(report), encoding="utf-8")


def _render(report: FuzzReport) -> str:
    requests = sum(report.requests.values())
    judge = report.judge
    slowdown = "unknown" if judge.slowdown is None else f"{judge.slowdown:.1f}"
    missing = "not looked at" if report.interrupted else "never"
    drained = missing if report.drained_s is None else f"after {report.drained_s:.1f} s"
    upload = missing if judge.upload_s is None else f"after {judge.upload_s:.1f} s"
    findings = [[what, str(count)] for what, count in report.findings.items()]
    parts = [
        f"# Fuzzing: {'something broke' if report.broke else 'passed'}",
        f"{requests:,} requests and {report.files:,} files in {report.seconds:.0f} s "
        f"({requests / report.seconds:.1f} and {report.files / report.seconds:.1f} per second), seed {report.seed}"
        f"{', interrupted' if report.interrupted else ''}. Limits of the stranger's key: {STRANGERS_LIMITS}.",
        f"{report.ended_processes} processes ended. The gateway took at most {report.longest_stall_s:.2f} s to say "
        f"that it is alive; a thread that slept waited {report.longest_lateness_s:.2f} s for a processor. "
        f"The controller had no query left {drained}; a document of the judge was found {upload}.",
        "## What broke",
        table(["what (source)", "times"], findings) if findings else "Nothing.",
        *(f"- {each}, left behind" for each in report.left),
        "## The judge",
        f"{judge.asked} questions, {sum(judge.wrong.values())} answers not right, {judge.near} right ones with "
        f"another text from a token on that was as likely. p99 during the campaign: {slowdown} times that of the idle "
        "stack. Seconds:",
        table(["", "count", "p50", "p99", "max"], _judge_rows(judge)),
        *(f"- {count} times {what}" for what, count in judge.wrong.items()),
        "## Tried",
        table(
            ["source", "inputs", "requests"],
            [[n, str(report.inputs[n]), str(report.requests[n])] for n in report.inputs],
        ),
        table(["answer", "count"], [[name, str(count)] for name, count in sorted(report.statuses.items())]),
        "## Memory",
        table(["process", "first MiB", "most", "last"], [[n, *map(str, m)] for n, m in report.memory_mib.items()]),
        f"Machine of the stack and the campaign: {report.machine.processor}, {report.machine.cores} cores.",
    ]
    return "\n\n".join(parts) + "\n"


def _judge_rows(judge: Judged) -> list[list[str]]:
    named = {
        "idle, whole answer": judge.idle,
        "idle, first token": judge.idle_ttft,
        "during, whole answer": judge.during,
        "during, first token": judge.during_ttft,
    }
    return [
        [name, str(spread.count), f"{spread.p50:.2f}", f"{spread.p99:.2f}", f"{spread.max:.2f}"]
        for name, spread in named.items()
        if spread is not None
    ]


def _ttft(asked: Sequence[JudgedQuestion]) -> Spread | None:
    return Spread.of([each.ttft for each in asked if each.ttft is not None])
