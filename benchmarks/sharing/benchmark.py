"""The sharing benchmark: first tokens, then throughput."""

import msgspec

from benchmarks.measuring.progress import Progress
from benchmarks.sharing.first_tokens import FirstTokenRounds, FirstTokens
from benchmarks.sharing.throughput import Served, ThroughputTurns


class SharingResult(msgspec.Struct, frozen=True):
    """First tokens by length of the prompt, and how each way to serve queries did.

    ``ttft_ms`` are the medians of the shortest prompt, for which reading on another machine pays least.
    ``bandwidth_share_of_tcp`` is that of the longest one. ``throughput`` is in queries a second by way.
    ``generator_latency`` is the mean latency with a KV generator, as a share of that of machines that are alone;
    ``generator_latency_of_one`` as a share of that of one machine without a KV generator.
    """

    ttft_ms: dict[str, float]
    remote_over_local: float
    remote_over_computed: float
    bandwidth_share_of_tcp: float
    throughput: dict[str, float]
    shared_over_alone: float
    shared_over_routed: float
    generator_over_alone: float
    generator_over_one: float
    generator_latency: float
    generator_latency_of_one: float
    first_tokens: list[FirstTokens]
    ways: dict[str, Served]


class SharingBenchmark:
    """Measures one after the other, because both need all processors."""

    def __init__(self, first_tokens: FirstTokenRounds, throughput: ThroughputTurns) -> None:
        self._first_tokens = first_tokens
        self._throughput = throughput

    async def run(self, seed: int, progress: Progress) -> SharingResult:
        """Measure. Raises what the engines raise."""
        rows = await self._first_tokens.run(progress)
        ways = await self._throughput.run(seed, progress)
        shortest, longest = min(rows, key=lambda row: row.tokens), max(rows, key=lambda row: row.tokens)
        rate = {way: served.queries_per_s for way, served in ways.items()}
        return SharingResult(
            ttft_ms=shortest.ttft_ms,
            remote_over_local=shortest.remote_over_local,
            remote_over_computed=shortest.remote_over_computed,
            bandwidth_share_of_tcp=longest.bandwidth_share_of_tcp,
            throughput=rate,
            shared_over_alone=rate["shared"] / rate["alone"],
            shared_over_routed=rate["shared"] / rate["routed"],
            generator_over_alone=rate["generator"] / rate["alone"],
            generator_over_one=rate["generator"] / rate["one"],
            generator_latency=ways["generator"].mean_latency_ms / ways["alone"].mean_latency_ms,
            generator_latency_of_one=ways["generator"].mean_latency_ms / ways["one"].mean_latency_ms,
            first_tokens=rows,
            ways=ways,
        )
