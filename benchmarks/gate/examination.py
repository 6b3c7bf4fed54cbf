"""Examines one way to compose on one engine."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compose.benchmark import ComposeBenchmark, ComposeSettings
from benchmarks.compose.rows import Way
from benchmarks.compose.tasks import NEEDLES, Task, first, needle_tasks
from benchmarks.gate.verdict import verdict
from benchmarks.measuring.progress import Progress
from generator.settings import GeneratorSettings
from protocol.gate import GateReport

_CHUNKS = 6
"""Documents of a prompt."""


def probe_set(texts: Sequence[str], questions: int, seed: int) -> Mapping[str, Sequence[Task]]:
    """Return so many questions of each kind, about codes that are hidden in the texts."""
    return {kind: first(needle_tasks(kind, texts, _CHUNKS, seed), questions) for kind in NEEDLES}


async def examine(
    settings: GeneratorSettings,
    cache_dir: Path,
    way: Way,
    probes: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> GateReport:
    """Start an engine of these settings and ask it. Raises ConfigError if it cannot compose, and what it raises."""
    asked = ComposeSettings((way,), rounds=0, documents=2, document_tokens=16)
    benchmark = ComposeBenchmark.over(settings, cache_dir, asked, progress)
    await benchmark.run(probes)
    return verdict(benchmark.result(complete=True).rows, benchmark.fingerprint, time.time())
