"""Transfers and purges from the moment a message asks for them until the worker side has finished them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.step_jobs import Purge, Transfer
from protocol.kv import KvNode, LostCopy, Move, Pages
from protocol.tiers import Tier

_LONGEST_WRITE_S = 10.0
"""Requests wait this long for a copy that is being written. A worker that hangs must not hang them too."""


class LostCopies:
    """Copies that should be in a tier and are not, and are not reported yet: each once, in the order of their loss."""

    def __init__(self) -> None:
        self._copies: dict[LostCopy, None] = {}

    def add(self, *copies: LostCopy) -> None:
        """Record losses."""
        self._copies.update(dict.fromkeys(copies))

    def discard(self, copy: LostCopy) -> None:
        """Forget a loss, because the copy has been made again."""
        self._copies.pop(copy, None)

    def take(self) -> tuple[LostCopy, ...]:
        """The lost copies since the last call."""
        lost = tuple(self._copies)
        self._copies.clear()
        return lost


class _UnderWay(NamedTuple):
    """A transfer that has not ended, and when it was ordered, in seconds."""

    transfer: Transfer
    began: float


@dataclass
class _OpenMessage:
    """A message: the numbers of the jobs it waits for, and the copies that were not made.

    More jobs follow unless it is ``whole``: a plan saves copies after its first token.
    """

    numbers: set[int]
    whole: bool
    lost: list[LostCopy] = field(default_factory=list)


class TransferQueue:
    """Queues transfers and purges for the next step, and knows which messages wait for those under way.

    The blocks of a transfer out of the GPU tier are retained until the transfer ends. The engine has ``ranks``
    tensor-parallel workers. ``clock`` returns seconds and never goes back.
    """

    def __init__(
        self, gpu: GpuTier, lost: LostCopies, ranks: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gpu = gpu
        self._lost = lost
        self._ranks = ranks
        self._clock = clock
        self._numbers = count(1)
        self._queued: list[Transfer] = []
        self._purges: list[Purge] = []
        self._under_way: dict[int, _UnderWay] = {}
        self._open: dict[str, _OpenMessage] = {}
        self._refused: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether any transfer, purge or message is not finished."""
        return bool(self._under_way or self._queued or self._open)

    def move(self, move: Move) -> int | None:
        """Start a move. Returns the number of its transfer, or None if the move is done at once."""
        held = move.source is Tier.GPU and move.node in self._gpu
        if move.source is Tier.GPU and move.target is None:
            self._release(move.node)
            return None
        transfer = Transfer(
            number=next(self._numbers),
            key=move.node,
            source=move.source,
            target=move.target,
            # Without blocks, an earlier transfer has copied the node and the target has it; or it cannot be copied.
            node=self._gpu.node(move.node) if held else None,
            blocks=self._gpu.blocks(move.node) if held else (),
            pages=move.pages,
            evict=move.evict,
        )
        self._start(transfer)
        if held and move.evict:
            self._release(move.node)
        return transfer.number

    def save(self, name: str, node: KvNode, blocks: tuple[int, ...], target: Tier, pages: Pages | None) -> None:
        """Start to copy a node out of a prompt's blocks into a tier below the GPU. The plan ``name`` waits for it."""
        transfer = Transfer(next(self._numbers), node.key, Tier.GPU, target, node, blocks, pages, evict=False)
        self._start(transfer)
        if name in self._open:
            self._open[name].numbers.add(transfer.number)

    def cannot_save(self, name: str, key: str, target: Tier) -> None:
        """Note that the plan ``name`` does not make a copy that it was to make.

        The copy counts as lost at once, because the plan's message may end after the plan's last step.
        """
        lost = LostCopy(key, target)
        self._lost.add(lost)
        if name in self._open:
            self._open[name].lost.append(lost)

    def purge(self, contents: dict[str, frozenset[str]] | None, tiers: Sequence[Tier], of: str = "") -> Purge:
        """Queue a purge; see ``Purge`` for ``contents``, ``tiers`` and ``of``."""
        purge = Purge(next(self._numbers), contents, tuple(tiers), of)
        self._purges.append(purge)
        return purge

    def open_message(self, name: str, numbers: set[int], whole: bool = True) -> None:
        """Report the message ``name`` as carried out once the jobs of these numbers are finished.

        A plan's message is not ``whole`` before ``end_message``.
        """
        self._open[name] = _OpenMessage(numbers, whole)

    def end_message(self, name: str) -> None:
        """Note that a plan starts no more jobs."""
        if name in self._open:
            self._open[name].whole = True

    def forget_message(self, name: str) -> None:
        """Report nothing about a plan that ended without its first token."""
        message = self._open.get(name)
        if message is not None and not message.whole:
            del self._open[name]

    def writes_any(self, copies: set[tuple[str, Tier | None]]) -> bool:
        """Whether one of these copies, given as key and tier, is being written. If that takes too long, it is not."""
        since = self._clock() - _LONGEST_WRITE_S
        return any(
            (transfer.key, transfer.target) in copies and transfer.writes and began > since
            for transfer, began in self._under_way.values()
        )

    def drop(self, key: str, tier: Tier, pages: Pages | None) -> None:
        """Start to delete a copy."""
        self._start(Transfer(next(self._numbers), key, tier, None, pages=pages))

    def take_queued(self) -> tuple[list[Transfer], list[Purge]]:
        """The transfers and purges queued since the last call."""
        queued, self._queued = self._queued, []
        purges, self._purges = self._purges, []
        return queued, purges

    def transferred(self, number: int, done: bool) -> None:
        """Record the end of a transfer. If it failed, its copy is lost.

        It is lost at once, not only when its message is carried out. That may be long after a plan's last step, when
        nobody waits for it any more: the controller would go on to plan with the copy.
        """
        transfer, _ = self._under_way.pop(number)
        self._gpu.give_back(transfer.blocks)
        waiting = next((message for message in self._open.values() if number in message.numbers), None)
        if waiting is not None:
            waiting.numbers.discard(number)
        if done or transfer.target is None:
            return
        lost = LostCopy(transfer.key, transfer.target)
        self._lost.add(lost)
        if waiting is not None:
            waiting.lost.append(lost)
        if self._ranks > 1:
            # Other ranks may have made their part of the copy.
            self.drop(transfer.key, transfer.target, transfer.pages)

    def purged(self, number: int, left: int) -> None:
        """Record the end of a purge that could not delete ``left`` nodes. If any is left, its message is refused."""
        for name, message in self._open.items():
            if number in message.numbers:
                message.numbers.discard(number)
                if left:
                    self._refused.add(name)

    def take_carried_out(self) -> tuple[dict[str, tuple[LostCopy, ...]], tuple[str, ...]]:
        """The messages carried out since the last call, each with its lost copies, and which of them are refused."""
        done = [name for name, message in self._open.items() if message.whole and not message.numbers]
        carried_out = {name: tuple(self._open.pop(name).lost) for name in done}
        refused = tuple(self._refused & carried_out.keys())
        self._refused -= carried_out.keys()
        return carried_out, refused

    def _start(self, transfer: Transfer) -> None:
        self._gpu.retain(transfer.blocks)
        self._under_way[transfer.number] = _UnderWay(transfer, self._clock())
        self._queued.append(transfer)

    def _release(self, key: str) -> None:
        """Release a node from the GPU tier as ordered. The nodes after it go too, and count as lost."""
        for released in self._gpu.release(key):
            if released != key:
                self._lost.add(LostCopy(released, Tier.GPU))
