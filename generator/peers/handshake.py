"""Mutual authentication: each side proves that it knows the shared key, with an HMAC over fresh nonces of both.

It keeps strangers out, and tells them no more than the protocol's version. It neither encrypts nor signs what follows:
anyone who can read the network between two machines can read KV, and anyone who can change packets can change KV.
"""

import hmac
import secrets
from collections.abc import Callable
from enum import Enum
from hashlib import pbkdf2_hmac

import msgspec

from generator.peers.stream import Stream
from generator.peers.wire import (
    ADMISSIONS,
    INTRODUCTIONS,
    MOST_STRANGER_BYTES,
    NONCE_BYTES,
    OPENINGS,
    VERSION,
    Greeting,
    Introduction,
    PageFormat,
    PeerUnreachable,
    Reason,
    Refusal,
    Welcome,
)
from protocol.errors import ConfigError

FEWEST_CHARACTERS = 16
_SALT = b"ragtree peers 1"
_ROUNDS = 100_000
"""They slow down anyone who guesses the secret from recorded proofs. They take about 30 ms, once a process."""
_REFUSALS = {
    Reason.BUSY: "has no place for another connection",
    Reason.DENIED: "does not accept this key",
    Reason.INCOMPATIBLE: f"does not speak version {VERSION}, as this one does",
}


class Side(Enum):
    """The side of a connection that makes a proof. Proofs of the two sides differ, so none can be sent back."""

    CLIENT = b"client"
    SERVER = b"server"


class PeerKey:
    """A key derived from the shared ``secret``. Neither of them is ever sent.

    Raises ConfigError if the secret has fewer than ``FEWEST_CHARACTERS`` characters.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < FEWEST_CHARACTERS:
            raise ConfigError(f"the key that peers share needs at least {FEWEST_CHARACTERS} characters")
        self._key = pbkdf2_hmac("sha256", secret.encode(), _SALT, _ROUNDS)

    @property
    def fingerprint(self) -> str:
        """64 bits in hex by which machines compare their secrets. They are slow to guess a secret from, like proofs."""
        return hmac.digest(self._key, b"fingerprint", "sha256")[:8].hex()

    def proof(self, side: Side, nonces: tuple[bytes, bytes], said: bytes = b"") -> bytes:
        """The proof that ``side`` knows the key and said ``said``: an HMAC-SHA256.

        ``nonces`` are the server's and the client's for this connection, 32 bytes each.
        """
        return hmac.digest(self._key, side.value + b"".join(nonces) + said, "sha256")

    def proves(self, proof: bytes, side: Side, nonces: tuple[bytes, bytes], said: bytes = b"") -> bool:
        """Whether ``proof`` is that of ``side``. Takes as long for a wrong proof as for a right one."""
        return hmac.compare_digest(proof, self.proof(side, nonces, said))


def admit(
    stream: Stream, key: PeerKey, its_format: PageFormat, take_place: Callable[[], bool], deadline: float
) -> None:
    """Authenticate a client, for a server whose pages have ``its_format``.

    ``take_place`` is called once the client has proved that it knows the key, and returns False if there is no place.
    Raises PeerUnreachable if the client is not admitted; it has been told why.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    stream.send_message(Greeting(VERSION, nonce), deadline)
    client = stream.receive_message(INTRODUCTIONS, deadline, MOST_STRANGER_BYTES)
    nonces = (nonce, client.nonce)
    if client.version != VERSION:
        raise refuse(stream, Reason.INCOMPATIBLE, f"speaks version {client.version}, this one {VERSION}", deadline)
    if not key.proves(client.proof, Side.CLIENT, nonces):
        raise refuse(stream, Reason.DENIED, "has another key", deadline)
    if not take_place():
        raise refuse(stream, Reason.BUSY, "is one connection too many", deadline)
    proof = key.proof(Side.SERVER, nonces, msgspec.msgpack.encode(its_format))
    stream.send_message(Welcome(proof, its_format), deadline)


def refuse(stream: Stream, reason: Reason, why: str, deadline: float) -> PeerUnreachable:
    """Tell a client why it is not admitted. Returns the server's own error, which says ``why``."""
    stream.send_message(Refusal(reason), deadline)
    return PeerUnreachable(reason, f"{stream.peer} {why}")


def introduce(stream: Stream, key: PeerKey, own_format: PageFormat, deadline: float) -> None:
    """Authenticate with a server, for a client that needs pages of ``own_format``.

    Raises PeerUnreachable if the server refuses, does not know the key itself, or has pages of another format.
    """
    greeting = stream.receive_message(OPENINGS, deadline)
    if isinstance(greeting, Refusal):
        raise _refused(stream, greeting)
    if greeting.version != VERSION:
        raise stream.violation(f"speaks version {greeting.version}, this one {VERSION}")
    nonces = (greeting.nonce, secrets.token_bytes(NONCE_BYTES))
    stream.send_message(Introduction(VERSION, nonces[1], key.proof(Side.CLIENT, nonces)), deadline)
    admission = stream.receive_message(ADMISSIONS, deadline)
    if isinstance(admission, Refusal):
        raise _refused(stream, admission)
    if not key.proves(admission.proof, Side.SERVER, nonces, msgspec.msgpack.encode(admission.format)):
        raise PeerUnreachable(Reason.DENIED, f"{stream.peer} does not know the key")
    difference = own_format.difference(admission.format)
    if difference is not None:
        raise stream.violation(difference)


def _refused(stream: Stream, refusal: Refusal) -> PeerUnreachable:
    words = _REFUSALS.get(refusal.reason, "refuses the connection")
    return PeerUnreachable(refusal.reason, f"{stream.peer} {words}")
