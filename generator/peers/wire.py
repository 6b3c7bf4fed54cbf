"""What peers send each other. All of it can be read on the way: the traffic is not encrypted.

    server  Greeting        its version and nonce; or a Refusal
    client  Introduction    its nonce and its proof that it knows the key
    server  Welcome         its own proof, and the format of its pages; or a Refusal

Then, for every read:

    client  ReadRequest
    server  page head, page, page head, page, ..., closing head, ReplyEnd

A message is its length in 4 bytes, big-endian, and a msgpack map. A head has ``HEAD_BYTES`` bytes: whether a page
follows, and the page's checksum. Pages are raw bytes. The client believes none before a ReplyEnd that is ``ok``.

The errors of the copy itself are the tiers' own: KvMissing and KvBroken.
"""

import struct
from enum import IntEnum, StrEnum
from typing import Annotated

import msgspec

from generator.tiers.base import Damage, TierError
from protocol.kv import Pages
from protocol.tiers import Tier

VERSION = 1
NONCE_BYTES = 32
LENGTH_BYTES = 4
MOST_MESSAGE_BYTES = 1 << 20
MOST_STRANGER_BYTES = 1 << 10
"""The longest message of a client that has not authenticated."""

_HEAD = struct.Struct(">BQ")
HEAD_BYTES = _HEAD.size

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
NodeKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{1,256}\Z")]
"""A node's key. It becomes the name of a file, so it must be hexadecimal."""


def joined(host: str, port: int) -> str:
    """The address of a port on a host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The host and port of an address. Raises ValueError if it has none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


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


class PeerUnreachable(TierError):
    """A peer cannot be read from, for a ``reason``. Its copies may be fine. The message names the peer."""

    def __init__(self, reason: Reason, message: str) -> None:
        # Exception.args must hold both: pickling rebuilds the error from them.
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


class Head(IntEnum):
    """What follows a head: a page, or the reply's ReplyEnd."""

    PAGE = 1
    CLOSING = 2


class Status(StrEnum):
    """How a read has ended."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"
    NO_SUCH_PAGE = "no_such_page"


class PageFormat(msgspec.Struct, frozen=True):
    """What the pages of a peer are. KV is valid only between peers with equal formats.

    ``rank`` is the part of every page that the peer has, with tensor parallelism. A part has ``page_bytes`` bytes.
    """

    fingerprint: str
    page_bytes: int
    rank: int

    def difference(self, theirs: "PageFormat") -> str | None:
        """What differs in a peer's format, as the end of a sentence that begins with the peer. None if nothing does."""
        if theirs.fingerprint != self.fingerprint:
            return "has KV of another model"
        if theirs.page_bytes != self.page_bytes:
            return f"has pages of {theirs.page_bytes} bytes, this one of {self.page_bytes}"
        if theirs.rank != self.rank:
            return f"is rank {theirs.rank}, this one is rank {self.rank}"
        return None


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """A server's first message. These fields stay in all versions, so that every client can tell what differs."""

    version: int
    nonce: Nonce


class Introduction(msgspec.Struct, frozen=True, tag="introduction"):
    """A client's answer to the greeting."""

    version: int
    nonce: Nonce
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """A server's answer to a client that knows the key. The proof covers the format."""

    proof: bytes
    format: PageFormat


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A server's last message to a client that it does not serve."""

    reason: Reason


class ReadRequest(msgspec.Struct, frozen=True):
    """A request for ``count`` pages of a node, from page ``first`` on. ``pages`` locate the node in host memory."""

    node: NodeKey
    tier: Tier
    pages: Pages | None
    first: Annotated[int, msgspec.Meta(ge=0)]
    count: Annotated[int, msgspec.Meta(ge=1)]


class ReplyEnd(msgspec.Struct, frozen=True):
    """The end of a reply. If it is ``ok``, the copy has not changed while its pages were sent.

    ``damage`` is set if the copy is broken. ``detail`` says what is wrong.
    """

    status: Status
    damage: Damage | None = None
    detail: str = ""


OPENINGS: msgspec.msgpack.Decoder[Greeting | Refusal] = msgspec.msgpack.Decoder(Greeting | Refusal)
INTRODUCTIONS: msgspec.msgpack.Decoder[Introduction] = msgspec.msgpack.Decoder(Introduction)
ADMISSIONS: msgspec.msgpack.Decoder[Welcome | Refusal] = msgspec.msgpack.Decoder(Welcome | Refusal)
REQUESTS: msgspec.msgpack.Decoder[ReadRequest] = msgspec.msgpack.Decoder(ReadRequest)
OUTCOMES: msgspec.msgpack.Decoder[ReplyEnd] = msgspec.msgpack.Decoder(ReplyEnd)


def framed(message: msgspec.Struct) -> bytes:
    """The message with its length in front. Raises ValueError if it is longer than ``MOST_MESSAGE_BYTES``."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MOST_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes exceeds the limit of {MOST_MESSAGE_BYTES}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_head(head: Head, checksum: int = 0) -> bytes:
    """A head, with the XXH3-64 of the page that follows."""
    return _HEAD.pack(head, checksum)


def decode_head(encoded: bytes | bytearray) -> tuple[Head, int]:
    """A head and its checksum. Raises ValueError if it is none."""
    kind, checksum = _HEAD.unpack(encoded)
    return Head(kind), checksum
