"""The sharing benchmark: first tokens, then throughput."""

from pathlib import Path
from tempfile import TemporaryDirectory

from examine.measuring import Progress
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.sharing.first_tokens import FirstTokenRounds, FirstTokens
from ragtree_lab.sharing.machines import Machines, engines_on
from ragtree_lab.sharing.peer_settings import sharing_peers
from ragtree_lab.sharing.throughput import Ratios, Throughput, ThroughputTurns

NAMES = ("machine-0", "machine-1")
"""The engines' names in plans: each machine has one."""


class SharingResult(Ratios, frozen=True, kw_only=True):
    """First tokens by length of the prompt, and how each way served queries at each point.

    ``ttft_ms`` are the medians of the shortest prompt, for which reading on another machine pays least.
    ``bandwidth_share_of_tcp`` is that of the longest one. ``throughput`` is in queries a second by way, at the first
    point, and so are the ratios.
    """

    ttft_ms: dict[str, float]
    remote_over_local: float
    remote_over_computed: float
    bandwidth_share_of_tcp: float
    throughput: dict[str, float]
    first_tokens: list[FirstTokens]
    points: list[Throughput]


class SharingBenchmark:
    """Measures one after the other on two ``machines``, because both need all processors.

    ``kv`` gives each machine host memory and a disk of so many GiB for the throughput.
    """

    def __init__(
        self,
        machines: Machines,
        maker: ComparedEngines,
        first_tokens: FirstTokenRounds,
        throughput: ThroughputTurns,
        **kv: float,
    ) -> None:
        self._machines = machines
        self._maker = maker
        self._first_tokens = first_tokens
        self._throughput = throughput
        self._kv = kv

    async def run(self, seed: int, progress: Progress) -> SharingResult:
        """Measure. Raises what the engines raise."""
        with TemporaryDirectory(prefix="ragtree-bench-") as folder:
            peers = sharing_peers(Path(folder))
            # One of them computes at a time, and has all processors. Then both compute, and each has half of them.
            async with engines_on(self._machines, self._maker, NAMES, peers=peers) as engines:
                rows = await self._first_tokens.run(engines, progress)
            async with engines_on(self._machines, self._maker, NAMES, at_work=2, peers=peers, **self._kv) as engines:
                points = await self._throughput.run(engines, seed, progress)
        shortest, longest = min(rows, key=lambda row: row.tokens), max(rows, key=lambda row: row.tokens)
        first = points[0]
        return SharingResult(
            ttft_ms=shortest.ttft_ms,
            remote_over_local=shortest.remote_over_local,
            remote_over_computed=shortest.remote_over_computed,
            bandwidth_share_of_tcp=longest.bandwidth_share_of_tcp,
            throughput={way: served.queries_per_s for way, served in first.ways.items()},
            **{ratio: getattr(first, ratio) for ratio in Ratios.__struct_fields__},
            first_tokens=rows,
            points=points,
        )
