"""What engines count themselves, such as vLLM's own metrics, beside the gateway's."""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.part_metrics import PartMetrics
from protocol.parts import Generator

LABEL = "generator"
"""The label that says which instance counted. Not ``instance``: Prometheus has that one itself, and renames ours."""


class EngineMetrics(PartMetrics[list[Metric]]):
    """The metrics of all instances under one name each, every sample with its instance's name in ``LABEL``."""

    def __init__(self, registry: CollectorRegistry, generator: Generator, timeout_s: float) -> None:
        self._generator = generator
        super().__init__(registry, self._asked, timeout_s)

    def families(self, answer: list[Metric]) -> Iterator[Metric]:
        """The merged metrics."""
        return iter(answer)

    async def _asked(self) -> list[Metric]:
        # Parsed in a thread: there are hundreds of lines, and this loop hands out tokens.
        return await asyncio.to_thread(merged, await self._generator.metrics())


def merged(by_instance: dict[str, str]) -> list[Metric]:
    """Texts in Prometheus' format as metrics that each occur once. Raises ValueError for what is no such text."""
    families: dict[str, Metric] = {}
    for instance, text in by_instance.items():
        for family in text_string_to_metric_families(text):
            # When a series began is of no use to anybody, and half as many series again.
            if family.name.endswith("_created"):
                continue
            labelled = [sample._replace(labels={**sample.labels, LABEL: instance}) for sample in family.samples]
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += labelled
    return list(families.values())
