"""Data between the connector's two sides: jobs for the worker side with each step, and their results.

All of it is plain data, because the sides may run in different processes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from generator.connector.messages import NOT_COMPOSED, Composed
from generator.tiers.base import TierContents
from protocol.dependency import DependencyTrees
from protocol.kv import KvMemory, KvNode, KvRead, LostCopy, Pages, without_adapter
from protocol.plans import Donor, PlannedNode, Recompute
from protocol.tiers import Tier


@dataclass(frozen=True)
class BlockCopy:
    """A copy of one of the engine's blocks onto another."""

    source: int
    target: int


def copy_of(source: PlannedNode | Donor) -> LostCopy | None:
    """The copy that a plan reads, as it is reported if it is not there; None for what it computes or composes."""
    if source.peer is not None:
        return LostCopy(source.key, source.peer.tier, source.peer.location)
    return LostCopy(source.key, source.source) if source.source is not None else None


@dataclass(frozen=True)
class _Read:
    """A copy to read, which the plan names: in a tier here below the GPU, or in a peer's."""

    source: PlannedNode | Donor

    @property
    def copy(self) -> LostCopy:
        """The copy that is read, as it is reported if it is not there."""
        copy = copy_of(self.source)
        assert copy is not None, "the plan reads no copy"
        return copy


@dataclass(frozen=True)
class Piece(_Read):
    """Consecutive pages of one node: ``first``, ``first`` + 1, ... go into an engine's ``blocks``."""

    first: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class DonorPages(_Read):
    """All pages of a donor. Its tokens go to the positions from ``start`` up to ``end``.

    ``content`` is its document: the namespace, and the content hash there. ``blocks`` hold it if its tier is the GPU.
    """

    source: Donor
    content: tuple[str, str]
    start: int
    end: int
    blocks: tuple[int, ...] = ()


def _is_at(location: str) -> Callable[[Piece | DonorPages], bool]:
    return lambda read: read.copy.location == location


@dataclass(frozen=True)
class Load:
    """What one request loads: within the step that computes the rest, or in the background, while others go on.

    ``copies`` are made out of held blocks of the same engine. If there is a ``composition`` after the load, ``donors``
    are read into memory for it. ``windows`` are retained blocks, by node: those with what the node keeps of sliding
    windows, some of them filled for that alone.
    """

    request_id: str
    pieces: tuple[Piece, ...]
    copies: tuple[BlockCopy, ...] = ()
    donors: tuple[DonorPages, ...] = ()
    composition: "Composition | None" = None
    windows: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def held_blocks(self) -> list[int]:
        """The blocks of nodes in the GPU tier that the load reads."""
        return [copy.source for copy in self.copies] + [block for donor in self.donors for block in donor.blocks]

    def near_and_far(self) -> "tuple[Load, list[Load]]":
        """What is read at this location, with all copies, and what is read at each other one."""
        near = self.only(lambda read: read.source.peer is None, self.copies)
        peers = [read.source.peer for read in (*self.pieces, *self.donors)]
        locations = dict.fromkeys(peer.location for peer in peers if peer is not None)
        return near, [self.only(_is_at(location)) for location in locations]

    def only(self, is_chosen: Callable[[Piece | DonorPages], bool], copies: tuple[BlockCopy, ...] = ()) -> "Load":
        """The part of the load that reads what is chosen, with these ``copies``."""
        pieces, donors = tuple(filter(is_chosen, self.pieces)), tuple(filter(is_chosen, self.donors))
        return replace(self, pieces=pieces, copies=copies, donors=donors)

    def split(self, count: int) -> "list[Load]":
        """Up to ``count`` loads of about equally many pages and donors, for as many threads.

        The first has all copies.
        """
        pages = sum(len(piece.blocks) for piece in self.pieces)
        count = min(count, max(pages, len(self.donors), 1))
        ends = [pages * number // count for number in range(1, count + 1)]
        return [
            replace(
                self,
                pieces=tuple(self._between(begin, end)),
                copies=() if number else self.copies,
                donors=self.donors[number::count],
            )
            for number, (begin, end) in enumerate(pairwise([0, *ends]))
        ]

    def _between(self, begin: int, end: int) -> Iterator[Piece]:
        at = 0
        for piece in self.pieces:
            start, stop = max(begin - at, 0), min(end - at, len(piece.blocks))
            if start < stop:
                yield replace(piece, first=piece.first + start, blocks=piece.blocks[start:stop])
            at += len(piece.blocks)


@dataclass(frozen=True)
class Composition:
    """A request's KV to compose in its ``blocks``, up to ``end``, once its load is done.

    The first ``exact`` of its ``token_ids`` have their KV. After them stand documents, those of the ``donors`` and
    others, which are computed. ``recompute`` says which donated tokens are computed again; there are none without it.
    If there are ``trees``, they come after the documents, in a ``namespace``, and their KV is computed or taken from
    earlier prompts. The engine itself computes what follows ``end``, with the question from ``question`` on.
    """

    token_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    exact: int
    donors: tuple[DonorPages, ...]
    end: int
    question: int
    recompute: Recompute | None
    namespace: str = ""
    trees: DependencyTrees | None = None


@dataclass(frozen=True)
class ComposeStep:
    """A step of a request's composition. The first one has the ``composition``; with ``drop``, it is given up.

    All ranks take it in the same step of the engine, because a forward pass joins them.
    """

    request_id: str
    composition: Composition | None = None
    drop: bool = False


@dataclass(frozen=True)
class Transfer:
    """Copies a node from ``source`` to a slower tier; without ``target`` it only deletes. ``evict`` frees the source.

    From a tier to itself, it checks that the node is there, and fails if it is not.

    If the source is the GPU, ``blocks`` hold the node. If ``blocks`` is empty and ``node`` is None, the engine no
    longer holds it: either an earlier transfer has copied it, or it cannot be copied any more. ``pages`` locate the
    node in host memory.
    """

    number: int
    key: str
    source: Tier
    target: Tier | None
    node: KvNode | None = None
    blocks: tuple[int, ...] = ()
    pages: Pages | None = None
    evict: bool = True

    @property
    def writes(self) -> bool:
        """Whether the transfer makes a copy. Without one, it deletes a copy, or checks that it is there."""
        return self.target is not None and self.target is not self.source


@dataclass(frozen=True)
class Purge:
    """Deletes documents, and everything computed after them, from ``tiers`` below the GPU, and what composing keeps.

    ``contents`` are content hashes by tenant's namespace, and those of its adapters are meant, too; None means
    everything in the namespaces that end with ``of``.
    """

    number: int
    contents: dict[str, frozenset[str]] | None
    tiers: tuple[Tier, ...]
    of: str = ""

    @property
    def is_total(self) -> bool:
        """Whether it deletes everything, of all owners."""
        return self.contents is None and not self.of

    def covers(self, namespace: str, path: tuple[str, ...]) -> bool:
        """Whether a node is one of the documents, or comes after one."""
        if self.contents is None:
            return namespace.endswith(self.of)
        return not self.contents.get(without_adapter(namespace), frozenset()).isdisjoint(path)


@dataclass
class StepJobs(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    """Jobs of one step.

    ``states`` are copied first, before the step overwrites them. ``loads`` run in the background. ``step_loads``, of
    held pages in host memory, and ``copies`` are made before the step's forward pass, which needs them. ``compose``
    runs after it. The ``transfers`` start then, in this order, then the ``purges``. ``inquiries`` are names under which
    to report what the tiers hold. An ``idle`` step computes nothing: all pending work waits for the worker side.
    """

    states: list[BlockCopy] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    step_loads: list[Load] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    compose: ComposeStep | None = None
    transfers: list[Transfer] = field(default_factory=list)
    purges: list[Purge] = field(default_factory=list)
    inquiries: list[str] = field(default_factory=list)
    idle: bool = False


@dataclass(frozen=True)
class LoadResult:
    """Result of a load: its duration in ``seconds``, and the copies that could not be read.

    These are ``lost`` if they are not there, and ``unread`` if a peer did not serve them. It ``failed`` if some of its
    blocks could not be filled. ``peers`` is what was read at other locations, one entry for each.
    """

    seconds: float
    lost: tuple[LostCopy, ...] = ()
    failed: bool = False
    unread: tuple[LostCopy, ...] = ()
    peers: tuple[KvRead, ...] = ()


@dataclass(frozen=True)
class CompositionResult:
    """Result of a composition. If it ``failed``, it has used nothing. It has a deviation if it failed for that."""

    composed: Composed = NOT_COMPOSED
    failed: bool = False


@dataclass
class JobResults:
    """Results of jobs that have ended.

    ``loads`` and ``composed`` are keyed by request, and so are the seconds of loads within a step, ``step_load_s``.
    ``transfers`` and ``purged`` are keyed by number. A transfer's value is False if it failed. ``purged`` counts the
    nodes that could not be deleted. ``held`` answers inquiries, by name and tier.
    """

    loads: dict[str, LoadResult] = field(default_factory=dict)
    step_load_s: dict[str, float] = field(default_factory=dict)
    composed: dict[str, CompositionResult] = field(default_factory=dict)
    transfers: dict[int, bool] = field(default_factory=dict)
    purged: dict[int, int] = field(default_factory=dict)
    held: dict[str, dict[Tier, TierContents]] = field(default_factory=dict)
    memory: KvMemory | None = None


@dataclass
class StepResults(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What each tensor-parallel rank has finished since the last step. A rank without results is left out."""

    by_rank: dict[int, JobResults]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StepResults":
        """The results of two groups of ranks side by side; ``RankResults`` joins them job by job."""
        assert isinstance(other, StepResults)
        return StepResults(self.by_rank | other.by_rank)
