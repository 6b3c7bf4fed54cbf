"""How far the controller carries: a simulation over the shipped classes."""

from collections.abc import Sequence

import msgspec

from cachectl.tree import knowledge_tree
from examine.measuring import Progress
from ragtree_lab.controller.decisions import DecisionBenchmark, DecisionRow, Speedup, speedups
from ragtree_lab.controller.directory import DirectoryBenchmark, DirectoryResult
from ragtree_lab.controller.growth import GrowthBenchmark, GrowthRow
from ragtree_lab.controller.network import NetworkBenchmark, NetworkRow


class ControllerResult(msgspec.Struct, frozen=True):
    """All results. ``shards_speedup`` is by the number of instances.

    ``compiled`` tells whether the decisions ran compiled (scripts/compile) or as Python.
    """

    compiled: bool
    decisions: list[DecisionRow]
    shards_speedup: dict[str, Speedup]
    directory: DirectoryResult
    growth: list[GrowthRow]
    network: list[NetworkRow]


class Sizes(msgspec.Struct, frozen=True):
    """The rows of results: by numbers of ``instances`` and ``shards``, and by numbers of machines.

    A directory's nodes lie on ``holders`` machines. ``machines`` are simulated with ``links_gbit_per_s``.
    """

    instances: Sequence[int]
    shards: Sequence[int]
    holders: Sequence[int]
    machines: Sequence[int]
    links_gbit_per_s: Sequence[float]


class ControllerBenchmark:
    """Measures decisions a second and the directory, also as it grows, and simulates bytes over the network."""

    def __init__(
        self,
        decisions: DecisionBenchmark,
        directory: DirectoryBenchmark,
        growth: GrowthBenchmark,
        network: NetworkBenchmark,
        sizes: Sizes,
    ) -> None:
        self._decisions = decisions
        self._directory = directory
        self._growth = growth
        self._network = network
        self._sizes = sizes

    def needed_bytes(self) -> int:
        """About how much memory the largest directory takes. Raises ConfigError if there is less."""
        return max(self._directory.needed_bytes(self._sizes.holders), self._growth.needed_bytes())

    def run(self, seed: int, progress: Progress) -> ControllerResult:
        """Measure everything. Raises ConfigError if a directory does not fit into memory, before anything runs."""
        sizes = self._sizes
        self.needed_bytes()
        decisions = self._decisions.run(sizes.instances, sizes.shards, seed, progress)
        return ControllerResult(
            compiled=not knowledge_tree.__file__.endswith(".py"),
            decisions=decisions,
            shards_speedup=speedups(decisions),
            directory=self._directory.run(sizes.holders, progress),
            growth=self._growth.run(seed, progress),
            network=self._network.run(sizes.machines, sizes.shards, sizes.links_gbit_per_s, seed, progress),
        )
