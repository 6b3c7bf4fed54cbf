"""Examines one way to compose on one engine."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from examine.composing.benchmark import ComposeBenchmark
from examine.composing.rows import Way
from examine.composing.tasks import NEEDLES, Task, first, needle_tasks
from examine.gate.verdict import decided, verdict
from examine.measuring.progress import Progress
from generator.settings import GeneratorSettings
from protocol.gate import GateReport

_CHUNKS = 6
"""Documents of a prompt."""


def probe_set(texts: Sequence[str], questions: int, seed: int) -> Mapping[str, Sequence[Task]]:
    """Return ``questions`` questions of each kind, about codes that are hidden in the texts, several to a prompt."""
    return {kind: first(needle_tasks(kind, texts, _CHUNKS, seed), questions) for kind in NEEDLES}


async def examine(
    settings: GeneratorSettings,
    cache_dir: Path,
    way: Way,
    probes: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> GateReport:
    """Start an engine of these settings and ask it, until it is clear what composing does to its answers.

    Raises ConfigError if it cannot compose, and what the engine raises.
    """
    benchmark = ComposeBenchmark.over(settings, cache_dir, (way,), progress)
    await benchmark.run(probes, enough=decided)
    return verdict(benchmark.result(complete=True).rows, benchmark.fingerprint, time.time())
