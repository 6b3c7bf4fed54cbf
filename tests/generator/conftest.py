"""What tests of real engines look at."""

import prometheus_client
import pytest


@pytest.fixture
def preemptions():
    """Requests that vLLM has preempted so far in this process's engines, by its own count."""

    def count() -> float:
        return sum(
            sample.value
            for metric in prometheus_client.REGISTRY.collect()
            for sample in metric.samples
            if sample.name == "vllm:num_preemptions_total"
        )

    return count
