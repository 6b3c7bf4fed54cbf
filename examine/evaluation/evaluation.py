"""An evaluation: every question asked, scored and kept, and the report on what was measured so far."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from examine.evaluation.asking import Asker, Mode, Row
from examine.evaluation.question_file import NumberedQuestion
from examine.evaluation.summary import Mean, ModeSummary, differences, summarise
from examine.measuring import Progress
from protocol.atomic_files import write_atomically
from protocol.errors import ConfigError
from protocol.plans import Reuse

REPORT, REPORT_TEXT, ANSWERS, PICTURE = "report.json", "report.md", "answers.jsonl", "evaluation.png"

EXACT = Mode("exact", Reuse.EXACT)
COMPOSED = Mode("composed", Reuse.COMPOSED)

BOTH = (COMPOSED, EXACT)
"""Composed first: an exact prompt leaves KV that would serve the same prompt in full, so nothing would be composed."""

Clear = Callable[[], object]
"""Empties the stack's cache."""


class EvaluationSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of which stack. ``sha256`` is the file's. Options are None if they were left to the stack.

    ``cleared`` says whether the cache was emptied before each mode, and the modes followed each other.
    """

    url: str
    dataset: str
    sha256: str
    started: str
    questions: int
    collection: str
    top_k: int | None
    search: str | None
    max_tokens: int | None
    concurrency: int
    cleared: bool


class Failure(msgspec.Struct, frozen=True):
    """A question without an answer."""

    line: int
    mode: str
    error: str


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an evaluation. ``complete`` is false if it was interrupted.

    ``differences`` are those of composed answers from exact ones, if both were asked for.
    """

    asked: EvaluationSubject
    complete: bool
    models: tuple[str, ...]
    modes: dict[str, ModeSummary]
    differences: dict[str, Mean]
    failures: tuple[Failure, ...]

    @property
    def answered(self) -> int:
        """How many answers there were, in all modes."""
        return sum(mode.answered for mode in self.modes.values())


class ReportFolder:
    """The folder ``path``, which is made if it does not exist.

    ``option`` names it on the command line. Raises ConfigError if it holds anything already, because that would mix two
    reports, or cannot be made.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise ConfigError(f"the report's folder {path} cannot be made: {error.strerror}", option) from error
        if occupied:
            raise ConfigError(f"the folder {path} is not empty: name a new one with --{option}", option)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step, so that there is always a complete one. Raises OSError."""
        write_atomically(self.path / name, content, mode=0o644)


class Evaluation:
    """Asks questions in ``modes``, and adds each row to a file in ``folder``, if there is one.

    The modes take turns at each question. With ``clear``, each mode gets all questions, and an empty cache before.
    ``progress`` is called with (step, done, total).
    """

    def __init__(
        self,
        asker: Asker,
        modes: Sequence[Mode],
        asked: EvaluationSubject,
        folder: ReportFolder | None,
        progress: Progress,
        clear: Clear | None = None,
    ) -> None:
        self._asker = asker
        self._modes = modes
        self._asked = asked
        self._folder = folder
        self._progress = progress
        self._clear = clear
        self.rows: list[Row] = []

    def run(self, questions: Sequence[NumberedQuestion]) -> None:
        """Ask all questions. Before an interruption, too, the rows so far are in ``rows``.

        Raises OSError if a row cannot be written, and what ``clear`` raises.
        """
        total = len(questions) * len(self._modes)
        self._progress("asking", 0, total)
        for modes in [self._modes] if self._clear is None else [[mode] for mode in self._modes]:
            if self._clear is not None:
                self._clear()
            for row in self._asker.rows(questions, modes):
                self._keep(row)
                self._progress("asking", len(self.rows), total)

    def report(self, *, complete: bool) -> EvaluationReport:
        """Return the figures of the rows so far."""
        by_mode = {mode.name: [row for row in self.rows if row.mode == mode.name] for mode in self._modes}
        both = COMPOSED.name in by_mode and EXACT.name in by_mode
        return EvaluationReport(
            asked=self._asked,
            complete=complete,
            models=tuple(sorted({row.answer.model for row in self.rows if row.answer is not None})),
            modes={name: summarise(rows) for name, rows in by_mode.items()},
            differences=differences(by_mode[COMPOSED.name], by_mode[EXACT.name]) if both else {},
            failures=tuple(Failure(row.line, row.mode, row.error) for row in self.rows if row.error is not None),
        )

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        if self._folder is not None:
            with (self._folder.path / ANSWERS).open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
