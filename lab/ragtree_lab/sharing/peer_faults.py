"""What goes wrong with a peer, one fault at a time: it begins when the context is entered, and ends at its exit."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from functools import partial

from ragtree_lab.sharing.link_faults import Cut, Lying, Slow
from ragtree_lab.sharing.reader_and_peer import ReaderAndPeer
from ragtree_lab.sharing.relay import LinkFault

_SLOW = 0.75
"""The share of the timeout that a slow link takes for one document. Two at a time take longer than the timeout."""


class Fault(StrEnum):
    """What goes wrong.

    - ``killed``: the peer's processes get SIGKILL. Another engine takes its place and its memory.
    - ``stopped``: they get SIGSTOP, and SIGCONT in the end. Connections stay open, but nothing answers.
    - ``slow``: the link carries one document in three quarters of the timeout.
    - ``cut``: connections end in the middle of a page.
    - ``lying``: one bit of each reply is flipped, in the middle of a page.
    """

    KILLED = "killed"
    STOPPED = "stopped"
    SLOW = "slow"
    CUT = "cut"
    LYING = "lying"


class PeerFaults:
    """Makes the faults of a ``pair`` whose documents have ``document_tokens`` tokens."""

    def __init__(self, pair: ReaderAndPeer, document_tokens: int) -> None:
        memory = pair.memory
        self._pair = pair
        # Messages are much shorter than half a page, so only pages are hit.
        middle = memory.page_bytes // 2
        document_bytes = document_tokens * memory.page_bytes // memory.page_tokens
        bytes_per_s = document_bytes / (_SLOW * memory.peers.timeout_s)
        self._faults: dict[Fault, Callable[[], AbstractAsyncContextManager[None]]] = {
            Fault.KILLED: self._killed,
            Fault.STOPPED: self._stopped,
            Fault.SLOW: partial(self._on_link, Slow(bytes_per_s)),
            Fault.CUT: partial(self._on_link, Cut(middle)),
            Fault.LYING: partial(self._on_link, Lying(middle)),
        }

    def having(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """Have a fault during the context."""
        return self._faults[fault]()

    @asynccontextmanager
    async def _killed(self) -> AsyncGenerator[None]:
        self._pair.peer.kill()
        yield
        await self._pair.replace_peer()

    @asynccontextmanager
    async def _stopped(self) -> AsyncGenerator[None]:
        self._pair.peer.stop()
        try:
            yield
        finally:
            self._pair.peer.resume()

    @asynccontextmanager
    async def _on_link(self, fault: LinkFault) -> AsyncGenerator[None]:
        self._pair.relay.fault = fault
        try:
            yield
        finally:
            self._pair.relay.fault = None
