"""Errors of reading from a peer. Those of the copy itself are the tiers' own: KvMissing and KvBroken."""

from enum import StrEnum

from generator.tiers.base import TierError


class Reason(StrEnum):
    """Why a peer cannot be read from.

    - ``refused``: there is no connection, because nothing listens there or the address leads nowhere.
    - ``timeout``: the peer did not answer in time.
    - ``cut``: the connection ended early.
    - ``busy``: the peer has no place for another connection.
    - ``denied``: the two sides have different keys.
    - ``incompatible``: the peer has another model or speaks another protocol.
    - ``damaged``: what arrived differs from its checksum, although the peer read it fine.
    """

    REFUSED = "refused"
    TIMEOUT = "timeout"
    CUT = "cut"
    BUSY = "busy"
    DENIED = "denied"
    INCOMPATIBLE = "incompatible"
    DAMAGED = "damaged"


class PeerError(TierError):
    """Base of the errors of peers."""


class PeerUnreachable(PeerError):
    """A peer cannot be read from, for a ``reason``. Its copies may be fine. The message names the peer."""

    def __init__(self, reason: Reason, message: str) -> None:
        # Exception.args must hold both: pickling rebuilds the error from them.
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message
