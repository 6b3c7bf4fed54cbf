"""The text of ``report.md``."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from examine.evaluation.tables import table
from ragtree_lab.suite.facts import Facts
from ragtree_lab.suite.key_figures import KEY_FIGURES
from ragtree_lab.suite.outcome import Outcome, Status
from ragtree_lab.suite.suite_folder import SuiteFolder

_QUICK = "Quick sizes: they show that all works, and about how fast. For figures to rely on, run without `--quick`."


def render(facts: Facts, outcomes: Sequence[Outcome], to_come: Sequence[str], folder: SuiteFolder) -> str:
    """Return the report on ``outcomes``, which names the benchmarks still ``to_come``. It links files in ``folder``."""
    parts = [
        "# RAGTree's benchmarks on this machine",
        *([_QUICK] if facts.quick else []),
        table(("fact", "value"), _facts(facts)),
        *([table(("benchmark", "status", "h:mm:ss"), map(_line, outcomes))] if outcomes else []),
        *([f"Not run so far: {', '.join(to_come)}."] if to_come else []),
    ]
    for outcome in outcomes:
        parts += _section(outcome, folder)
    return "\n\n".join(parts) + "\n"


def duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def _facts(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "date", facts.started
    yield "processor", f"{facts.processor}, {facts.cores} cores"
    yield "memory", f"{facts.memory / 2**30:.1f} GiB"
    yield "GPU", "; ".join(facts.gpus) or "none"
    yield "versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield "model", f"{facts.model}, dtype {facts.dtype}, engine {facts.engine}"
    if facts.commit is not None:
        yield "commit", facts.commit


def _line(outcome: Outcome) -> tuple[str, str, str]:
    return f"[{outcome.name}](#{outcome.name})", outcome.status, duration(outcome.seconds)


def _section(outcome: Outcome, folder: SuiteFolder) -> Iterator[str]:
    name = outcome.name
    yield f"## {name}"
    yield f"`{outcome.command}`"
    if outcome.status is Status.SKIPPED:
        yield f"Skipped: {outcome.why}."
        return
    took = duration(outcome.seconds)
    yield f"Took {took}." if outcome.status is Status.MEASURED else f"**Not measured**: {outcome.why}, after {took}."
    if outcome.log:
        yield "The end of its log:"
        # A block that is indented cannot be ended by what it holds.
        yield "\n".join(f"    {line}" for line in outcome.log)
    if outcome.result is not None:
        rows = [row for figure in KEY_FIGURES[name] for row in figure.rows(outcome.result)]
        yield table(("figure", "value"), rows)
    if folder.picture(name).exists():
        yield f"![{name}]({folder.picture(name).name})"
    yield "Files: " + ", ".join(
        f"[{file.name}]({file.name})" for file in (folder.result(name), folder.log(name)) if file.exists()
    )
