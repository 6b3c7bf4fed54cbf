"""Carries the connector's reports out of the engine's process."""

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from generator.connector.messages import EngineReport


class ReportStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is untyped here
    """An ``EngineReport`` packed as connector stats, the only thing that leaves the engine with every step."""

    @classmethod
    def of(cls, report: EngineReport) -> "ReportStats":
        """Pack a report."""
        return cls(data={"report": msgspec.to_builtins(report)})

    def is_empty(self) -> bool:
        """Whether it carries no report."""
        return not self.data

    def reset(self) -> None:
        """Drop the report."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """The later report, because each one is read as soon as it arrives."""
        return other

    def reduce(self) -> dict[str, int | float]:
        """No figures for vLLM's own log lines."""
        return {}
