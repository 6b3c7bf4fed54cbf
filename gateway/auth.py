"""Who is calling: API keys and the tenants they name."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.settings import ApiKey, GatewaySettings
from protocol.errors import ConfigError, PermissionDenied, Unauthenticated

_DIGEST_PREFIX = "sha256:"


class Caller(NamedTuple):
    """Whom a request is served for, as the key says."""

    tenant: str
    admin: bool

    @property
    def namespace(self) -> str:
        """What keeps the tenant's KV apart from others'; a digest, so it may stand in keys and file names."""
        return hashlib.sha256(f"ragtree-namespace:{self.tenant}".encode()).hexdigest()[:32]


class Keyring:
    """The issued keys by digest. Raises ConfigError for a digest that is none, or a key issued twice."""

    def __init__(self, keys: Sequence[ApiKey], default_tenant: str) -> None:
        self._callers: dict[bytes, Caller] = {}
        self._open = None if keys else Caller(default_tenant, admin=True)
        for key in keys:
            digest = _digest_of(key)
            if digest in self._callers:
                raise ConfigError(f"An API key of tenant {key.tenant!r} was issued twice.", "api_keys")
            self._callers[digest] = Caller(key.tenant, key.admin)

    @classmethod
    def from_settings(cls, settings: GatewaySettings) -> "Keyring":
        """The keyring that the settings describe; open where they hold no keys."""
        return cls(settings.api_keys, settings.default_tenant)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller whom an ``Authorization: Bearer`` header names. Raises Unauthenticated."""
        if self._open is not None:
            return self._open
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("Give an API key: 'Authorization: Bearer <key>'.")
        given = hashlib.sha256(key.strip().encode()).digest()
        # Digests are compared, each in constant time, so no timing tells how much of a key was right.
        found = [caller for digest, caller in self._callers.items() if hmac.compare_digest(digest, given)]
        if not found:
            raise Unauthenticated("This API key was not issued here.")
        return found[0]


def require_admin(caller: Caller) -> None:
    """Let administrators pass. Raises PermissionDenied."""
    if not caller.admin:
        raise PermissionDenied("This needs an administrator's key.")


def _digest_of(key: ApiKey) -> bytes:
    secret = key.secret.get_secret_value()
    if not secret.startswith(_DIGEST_PREFIX):
        return hashlib.sha256(secret.encode()).digest()
    try:
        digest = bytes.fromhex(secret.removeprefix(_DIGEST_PREFIX))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(f"The key of tenant {key.tenant!r} is no SHA-256 digest.", "api_keys")
    return digest
