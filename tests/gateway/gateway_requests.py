"""Headers of requests to the gateway under test, and readings of its replies and metrics."""

from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


def bearer(key: str | None) -> dict[str, str]:
    """The headers of a request with this key; without a key, none."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


async def pieces(count: int, size: int) -> AsyncIterator[bytes]:
    """A body of undeclared length."""
    for _ in range(count):
        yield b"x" * size


def without_chance(reply: dict[str, Any]) -> dict[str, Any]:
    """The fields of a reply that are the same each time."""
    assert set(reply["timings"]) == {
        "queue_ms", "retrieval_ms", "stages_ms", "non_overlapped_ms", "speculation", "kv_load_ms", "prefill_ms",
        "ttft_ms", "total_ms", "overtakes",
    }  # fmt: skip
    return {key: value for key, value in reply.items() if key not in ("query_id", "created_at", "timings")}


async def families(served) -> dict[str, Metric]:
    """The gateway's metrics by name."""
    text = (await served.client.get("/metrics")).text
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found), "a metric is described twice"
    return {family.name: family for family in found}


async def values(served, sample: str) -> dict[tuple[str, ...], float]:
    """Values of a sample by its labels' values, which are ordered by the labels' names."""
    return {
        tuple(value for _, value in sorted(found.labels.items())): found.value
        for family in (await families(served)).values()
        for found in family.samples
        if found.name == sample
    }


async def value(served, sample: str) -> float:
    """Value of a sample without labels."""
    (only,) = (await values(served, sample)).values()
    return only


async def by_label(served, sample: str) -> dict[str, float]:
    """Values of a sample by the value of its only label, or "" without a label."""
    return {"".join(labels): value for labels, value in (await values(served, sample)).items()}


async def total(served, sample: str) -> float:
    """Sum of a sample over all labels."""
    return sum((await values(served, sample)).values())
