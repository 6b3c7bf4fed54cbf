"""The gate, in front of benchmarks that compose where it has passed."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.output import StepBars, errors
from services.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachectl.runtime.composing import GateFolder
    from examine.composing.rows import Way
    from examine.composing.tasks import Task
    from protocol.gate import GateReport


def gate_of(config: Config, data: Path, corpus: str, seed: int, show: StepBars) -> "GateReport":
    """What the gate says of composing. If it has not been run before, it is run over the texts of ``corpus``."""
    from cachectl.runtime.composing import GateFolder
    from examine.composing.rows import Way
    from examine.gate import MOST_QUESTIONS
    from examine.gate.examination import probe_set
    from ragtree_lab.compose.set_tasks import chunk_texts

    way = Way(config.controller.recompute_method, config.controller.recompute_share)
    probes = probe_set(chunk_texts(data, corpus), MOST_QUESTIONS, seed)
    gates = GateFolder(config.cache_dir)
    report = asyncio.run(_kept_or_examined(config, gates, way, probes, show))
    if not report.passed:
        errors.print(f"Composing has not passed its gate, so nothing is composed: {report.why}.", highlight=False)
    return report


async def _kept_or_examined(
    config: Config, gates: "GateFolder", way: "Way", probes: "Mapping[str, Sequence[Task]]", show: StepBars
) -> "GateReport":
    from examine.composing.benchmark import ComposeBenchmark
    from examine.gate.examination import examine

    engine = ComposeBenchmark(config.generator, config.cache_dir, (way,), show)
    await engine.run({})
    for report in gates.read(engine.fingerprint).reports:
        if (report.method, report.share) == way:
            return report
    report = await examine(config.generator, config.cache_dir, way, probes, show)
    gates.add(report)
    return report
