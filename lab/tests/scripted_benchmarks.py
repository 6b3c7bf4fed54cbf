"""Benchmarks that do as they are told, as real processes, and what a suite needs to run them."""

import sys
from pathlib import Path
from textwrap import dedent

from ragtree_lab.suite.catalogue import Benchmark
from ragtree_lab.suite.facts import Facts
from ragtree_lab.suite.outcome import Outcome

FACTS = Facts(
    started="2026-03-01 12:00+00:00",
    processor="Some | processor",
    cores=2,
    memory=8 << 30,
    gpus=(),
    versions={"ragtree": "1.2.3", "torch": "2.0"},
    engine="vllm",
    model="some-model",
    dtype="auto",
    quick=False,
    commit="abc1234",
)

# Every script starts with this. What it says is seen at the latest at the next look at its log. A test may wait for
# a file to appear and read it at once, so a file appears whole.
_START = """\
import json, os, signal, subprocess, sys, time
from pathlib import Path


def say(line):
    print(line, file=sys.stderr, flush=True)


def hang():
    say("ready")
    while True:
        time.sleep(60)


"""

MEASURES = """\
    print("a library's greeting")
    say("measuring: 1 of 1")
    print(json.dumps({"p50_ratio": 1.2345, "compiled": True, "by_nodes": {"3000": {"p50_us": 1234.5, "p99_us": 0.5}}}))
    print("a library's farewell")
"""

FAILS = """\
    say("loading")
    say("error: there is no model")
    sys.exit(3)
"""

HANGS = """\
    def end(*_):
        print(json.dumps({"complete": False, "ttft_ratio_unloaded": {"vllm": 2.0}}))
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    Path("pid.new").write_text(str(os.getpid()))
    os.replace("pid.new", "pid")
    hang()
"""


def launcher(folder: Path, **scripts: str) -> list[str]:
    """Return a command that runs the script whose name is its first argument."""
    text = _START
    for name, script in scripts.items():
        text += f"if sys.argv[1] == {name!r}:\n    Path('arguments').write_text(' '.join(sys.argv[1:]))\n{script}\n"
    file = folder / "scripted.py"
    file.write_text(dedent(text))
    return [sys.executable, str(file)]


def benchmarks(*names: str) -> list[Benchmark]:
    return [Benchmark(name, "--size 1") for name in names]


def runs(pid: int) -> bool:
    """Whether a process runs. One that has ended, but for which nobody has asked, does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


class Noted:
    """A watcher that notes what it is told; ``at`` maps a line to what is then called."""

    def __init__(self, **at) -> None:
        self.began_names: list[tuple[str, int, int]] = []
        self.lines: list[str] = []
        self.outcomes: list[Outcome] = []
        self._at = at

    def began(self, name: str, number: int, total: int) -> None:
        self.began_names.append((name, number, total))

    def says(self, line: str) -> None:
        self.lines.append(line)
        if line in self._at:
            self._at[line]()

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
