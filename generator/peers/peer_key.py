"""The secret that all peers of a stack share, and the proofs that a peer knows it."""

import hmac
from enum import Enum
from hashlib import pbkdf2_hmac

from protocol.errors import ConfigError

FEWEST_CHARACTERS = 16
_SALT = b"ragtree peers 1"
_ROUNDS = 100_000
"""They slow down anyone who guesses the secret from recorded proofs. They take about 30 ms, once a process."""


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
