"""Keeps each input that broke something, so that it can be sent again."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ragtree_lab.fuzz.requests import Drawn, Request

_MOST_OF_A_KIND = 20
"""Of equal findings, so many are kept. The others are counted, and come again with the same seed."""
_HEADERS_OF_CURL = {"host", "connection", "content-length"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not have happened, ``at`` seconds after the campaign's start.

    ``inputs`` has the only input that can have caused it, or all that were under way or had just ended.
    """

    what: str
    at: float
    inputs: tuple[Drawn, ...]


class Keeper:
    """Writes findings into ``folder``, each into a folder of its own. May be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = time.monotonic()
        self.counts: Counter[str] = Counter()
        """How often each kind of finding came up."""

    def keep(self, what: str, inputs: Sequence[Drawn]) -> None:
        """Count a finding, and write it unless many like it are there."""
        sources = {each.source for each in inputs}
        kind = f"{what} ({next(iter(sources))})" if len(sources) == 1 else what
        self.counts[kind] += 1
        if self.counts[kind] > _MOST_OF_A_KIND:
            return
        finding = Finding(what=what, at=time.monotonic() - self._begun, inputs=tuple(inputs))
        name = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:60]
        folder = self._folder / f"{sum(self.counts.values()):04}-{name}"
        folder.mkdir(parents=True)
        (folder / "finding.json").write_bytes(msgspec.json.encode(finding))
        (folder / "about.txt").write_text(_about(finding), encoding="utf-8")
        for number, drawn in enumerate(inputs):
            _write_commands(folder, number, drawn)


def kept(folder: Path) -> list[Finding]:
    """Return the findings in a folder and below it, in order."""
    return [msgspec.json.decode(file.read_bytes(), type=Finding) for file in sorted(folder.rglob("finding.json"))]


def _about(finding: Finding) -> str:
    lines = [f"{finding.what}, {finding.at:.1f} s after the start", ""]
    for drawn in finding.inputs:
        lines.append(f"{drawn.source} number {drawn.number} of seed {drawn.seed}:")
        lines += [f"  at {request.starts_s:g} s: {request.line}" for request in drawn.input.requests]
    return "\n".join(lines) + "\n"


def _write_commands(folder: Path, number: int, drawn: Drawn) -> None:
    """Write the first request as a curl command, if it is one that curl can send."""
    for place, request in enumerate(drawn.input.requests[:4]):
        if not request.rude and len(request.pieces) == 1:
            stem = f"{number:02}-{place}"
            (folder / f"{stem}.body").write_bytes(request.pieces[0].content.partition(b"\r\n\r\n")[2])
            (folder / f"{stem}.sh").write_text(curl(request, f"{stem}.body"), encoding="utf-8")


def curl(request: Request, body: str) -> str:
    """A request as a command. ``$URL`` is the stack; keys stand where their placeholders are."""
    head, _, content = request.pieces[0].content.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    words = ["curl", "-sS", "--path-as-is", "-X", method]
    for line in lines:
        if line.partition(":")[0].lower() not in _HEADERS_OF_CURL:
            words += ["-H", line]
    if request.leaves_s is not None:
        words += ["-m", f"{request.leaves_s:.3f}"]
    if content:
        words += ["--data-binary", f"@{body}"]
    return f'{shlex.join(words)} "$URL"{shlex.quote(target)}\n'
