"""The engines' own metrics, such as vLLM's."""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.part_metrics import PartMetrics
from protocol.parts import Generator

LABEL = "generator"
"""Label for the generator instance. Prometheus sets ``instance`` itself and would rename ours."""


class EngineMetrics(PartMetrics[list[Metric]]):
    """The metrics of all instances, merged by name. Each sample has its instance's name in ``LABEL``."""

    def __init__(self, registry: CollectorRegistry, generator: Generator, timeout_s: float) -> None:
        self._generator = generator
        super().__init__(registry, self._asked, timeout_s)

    def families(self, answer: list[Metric]) -> Iterator[Metric]:
        """The merged metrics."""
        return iter(answer)

    async def _asked(self) -> list[Metric]:
        # Parsed in a thread: hundreds of lines would block the event loop, which also sends tokens.
        return await asyncio.to_thread(merged, await self._generator.metrics())


def merged(by_instance: dict[str, str]) -> list[Metric]:
    """Merge texts in Prometheus' format, by instance, into metrics with unique names. Raises ValueError for others."""
    families: dict[str, Metric] = {}
    for instance, text in by_instance.items():
        for family in text_string_to_metric_families(text):
            # The start times of series are not needed, and add half as many series again.
            if family.name.endswith("_created"):
                continue
            labelled = [sample._replace(labels={**sample.labels, LABEL: instance}) for sample in family.samples]
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += labelled
    return list(families.values())
