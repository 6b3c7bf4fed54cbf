"""What passes between the connector's halves: jobs down with each step, results up.

Plain data, for the halves may live in different processes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from protocol.kv import KvMemory, KvNode, Pages, ResidencyReport
from protocol.tiers import Tier


@dataclass(frozen=True)
class Piece:
    """A stretch of a node's pages on its way into an engine's blocks.

    The node's pages ``first``, ``first`` + 1, ... go into ``blocks``. From the GPU tier they are copied out of
    ``held``, the engine's own blocks; ``pages`` are the host memory's.
    """

    key: str
    tier: Tier
    first: int
    blocks: tuple[int, ...]
    pages: Pages | None = None
    held: tuple[int, ...] = ()


@dataclass(frozen=True)
class Load:
    """What one request loads. In the ``background`` it may take several steps, in which others go on."""

    request_id: str
    pieces: tuple[Piece, ...]
    background: bool

    def shares(self, count: int) -> "list[Load]":
        """The same as up to ``count`` loads of about as many pages each, to be carried out at once; one of nothing."""
        pages = sum(len(piece.blocks) for piece in self.pieces)
        ends = [pages * number // count for number in range(1, count + 1)]
        parts = [tuple(self._between(begin, end)) for begin, end in pairwise([0, *ends])]
        return [replace(self, pieces=pieces) for pieces in parts if pieces] or [self]

    def _between(self, begin: int, end: int) -> Iterator[Piece]:
        at = 0
        for piece in self.pieces:
            start, stop = max(begin - at, 0), min(end - at, len(piece.blocks))
            if start < stop:
                yield replace(
                    piece,
                    first=piece.first + start,
                    blocks=piece.blocks[start:stop],
                    held=piece.held[start:stop],
                )
            at += len(piece.blocks)


@dataclass(frozen=True)
class Transfer:
    """A node on its way from one tier to a slower one, or out (``target`` None); ``evict`` frees the source.

    ``blocks`` hold it where the source is the GPU. None of them and no ``node``: the engine has it no more, so it was
    brought there before or never will be. ``pages`` are the host memory's.
    """

    number: int
    key: str
    source: Tier
    target: Tier | None
    node: KvNode | None = None
    blocks: tuple[int, ...] = ()
    pages: Pages | None = None
    evict: bool = True


@dataclass(frozen=True)
class Purge:
    """Documents of which no tier may have anything left, nor of what stands behind them: contents by namespace.

    None: everything that there is.
    """

    number: int
    contents: dict[str, frozenset[str]] | None

    def dooms(self, namespace: str, path: tuple[str, ...]) -> bool:
        """Whether a node is one of the documents, or stands behind one."""
        return self.contents is None or not self.contents.get(namespace, frozenset()).isdisjoint(path)


@dataclass
class StepJobs(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    """Jobs of one step: ``loads`` before its forward pass, ``transfers`` after it, in their order, then ``purges``.

    ``inquiries`` are names under which somebody asks what the tiers hold. An ``idle`` step computes nothing,
    because all that is to be done waits for the worker half.
    """

    loads: list[Load] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    purges: list[Purge] = field(default_factory=list)
    inquiries: list[str] = field(default_factory=list)
    idle: bool = False


@dataclass(frozen=True)
class LoadResult:
    """What a load came to: ``seconds`` it took, and the keys of nodes whose copies in a tier were not to be had."""

    seconds: float
    lost: tuple[tuple[str, Tier], ...] = ()


@dataclass
class StepResults(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What ended since the last step: ``loads`` by request, the rest by number.

    ``transfers`` are False where they could not be carried out, ``purged`` says how many nodes could not be deleted.

    ``held`` answers inquiries, by name.
    """

    loads: dict[str, LoadResult] = field(default_factory=dict)
    transfers: dict[int, bool] = field(default_factory=dict)
    purged: dict[int, int] = field(default_factory=dict)
    held: dict[str, tuple[ResidencyReport, ...]] = field(default_factory=dict)
    memory: KvMemory | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StepResults":
        """Results of two workers as those of one: what failed on any has failed."""
        assert isinstance(other, StepResults)
        loads = dict(self.loads)
        for request_id, result in other.loads.items():
            mine = loads.get(request_id, LoadResult(0.0))
            loads[request_id] = LoadResult(max(mine.seconds, result.seconds), (*mine.lost, *result.lost))
        transfers = {
            number: self.transfers.get(number, True) and other.transfers.get(number, True)
            for number in self.transfers.keys() | other.transfers.keys()
        }
        purged = {
            number: self.purged.get(number, 0) + other.purged.get(number, 0)
            for number in self.purged.keys() | other.purged.keys()
        }
        return StepResults(loads, transfers, purged, self.held | other.held, self.memory or other.memory)
