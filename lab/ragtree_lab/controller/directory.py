"""Memory of the directory: what a controller keeps about each node and each machine that holds it.

Each figure is what a new process takes more, by its resident memory, after it has registered all nodes on so many
machines, as a restarted controller does. On disk a copy has no pages. In host memory it has numbered ones, and the
pages that are free count too.
"""

import gc
from collections.abc import Sequence
from functools import partial

import msgspec
import psutil

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from protocol.tiers import Tier
from ragtree_lab.controller.machines import PAGE_TOKENS, Machines
from ragtree_lab.controller.processes import Report, in_processes
from ragtree_lab.controller.registered_paths import (
    check_memory,
    held_nodes,
    needed_bytes,
    nodes_of,
    paths_of,
    register,
    whole_pages,
)


class DirectoryRow(msgspec.Struct, frozen=True):
    """Bytes of all ``nodes`` over nodes and ``machines``, each of which holds all of them in one tier."""

    tier: Tier
    machines: int
    nodes: int
    bytes_per_node_and_machine: float


class DirectoryResult(msgspec.Struct, frozen=True):
    """``node_bytes`` is what a node takes on one machine, and ``machine_bytes`` what each further machine adds to it.

    Both are by tier. ``document_pages`` is the number of a document's pages in host memory.
    """

    document_pages: int
    node_bytes: dict[str, float]
    machine_bytes: dict[str, float]
    rows: list[DirectoryRow]


class DirectoryBenchmark:
    """Registers ``nodes`` copies on disks, and a tenth as many in host memory, where they have pages.

    ``document_tokens`` is the length of each document.
    """

    def __init__(self, device: DeviceProfile, settings: ControllerSettings, nodes: int, document_tokens: int) -> None:
        self._device = device
        self._settings = settings
        self._tokens = whole_pages(document_tokens)
        paths = paths_of(nodes)
        self._paths = {Tier.DISK: paths, Tier.HOST: max(1, paths // 10)}

    def needed_bytes(self, machines: Sequence[int]) -> int:
        """About how much memory the largest measurement takes. Raises ConfigError if there is less."""
        most = max(machines)
        pages = self._tokens // PAGE_TOKENS
        needed = max(
            needed_bytes(nodes, most, pages if tier is Tier.HOST else 0) for tier, nodes in self._nodes.items()
        )
        check_memory(needed, f"a directory of so many nodes on {most} machines", "nodes")
        return needed

    def run(self, machines: Sequence[int], progress: Progress) -> DirectoryResult:
        """Measure each number of machines. Raises ConfigError for too little memory, and what the processes raise."""
        self.needed_bytes(machines)
        rows = [self._row(tier, count, progress) for tier in self._paths for count in machines]
        return DirectoryResult(
            self._tokens // PAGE_TOKENS,
            {tier.value: _on(rows, tier)[0].bytes_per_node_and_machine for tier in self._paths},
            {tier.value: added for tier in self._paths if (added := _added(_on(rows, tier))) is not None},
            rows,
        )

    @property
    def _nodes(self) -> dict[Tier, int]:
        return {tier: nodes_of(paths) for tier, paths in self._paths.items()}

    def _row(self, tier: Tier, machines: int, progress: Progress) -> DirectoryRow:
        paths, nodes = self._paths[tier], self._nodes[tier]
        tokens = nodes * self._tokens
        known = Machines(machines, 0, tokens if tier is Tier.HOST else 0, tokens if tier is Tier.DISK else 0)
        step, done = f"registering nodes on {machines} machines, {tier}", 0

        def advanced(count: int) -> None:
            nonlocal done
            done += count
            progress(step, done, machines * nodes)

        task = partial(_taken_bytes, known, self._device, self._settings, tier, paths, self._tokens)
        (taken,) = in_processes([task], advanced)
        return DirectoryRow(tier, machines, nodes, taken / nodes / machines)


def _on(rows: Sequence[DirectoryRow], tier: Tier) -> list[DirectoryRow]:
    return [row for row in rows if row.tier is tier]


def _added(rows: Sequence[DirectoryRow]) -> float | None:
    """Bytes that each further machine adds to a node, from the fewest machines to the most; None without more."""
    first, last = rows[0], rows[-1]
    if first.machines == last.machines:
        return None
    more = last.bytes_per_node_and_machine * last.machines - first.bytes_per_node_and_machine * first.machines
    return more / (last.machines - first.machines)


def _taken_bytes(
    machines: Machines,
    device: DeviceProfile,
    settings: ControllerSettings,
    tier: Tier,
    paths: int,
    tokens: int,
    report: Report,
) -> int:
    """Register so many paths on each machine; the memory that it takes."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    tree = machines.scheduler(device, settings).tree
    for location in tree.tiers.locations.values():
        register(tree, location.cache(tier), held_nodes(paths, tokens), report)
    gc.collect()
    return process.memory_info().rss - before
