"""Authentication by API key."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import SecretStr

from gateway.settings import GatewaySettings, Limits
from protocol.errors import ConfigError, PermissionDenied, Unauthenticated
from protocol.plans import Reuse

_DIGEST_PREFIX = "sha256:"


class Caller(NamedTuple):
    """The tenant, rights and limits of a request's key, and which KV its queries may use if they do not say.

    ``owner`` identifies the key in quota counters. It is a digest that reveals neither the key nor the tenant. The
    administrator's own key is ``only_admin``: it is valid for the admin routes, and for no others.
    """

    tenant: str
    admin: bool
    owner: str
    limits: Limits
    reuse: Reuse | None = None
    only_admin: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the tenant's KV."""
        return namespace_of(self.tenant)


class Keyring:
    """The API keys, and the administrator's key, which is valid for the admin routes only. Stored as digests.

    A key is found by its digest. How long that takes tells nothing about a key: nobody who guesses one can choose its
    digest. A wrong guess costs its sender a connection, but no caller can be locked out by it: keys have to be random.

    Without API keys, it lets every caller in. Raises ConfigError for a malformed digest, or a key that is configured
    twice.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        keys, default_tenant, admin_key = settings.api_keys, settings.default_tenant, settings.admin_key
        self._callers: dict[bytes, Caller] = {}
        everyone = _owner_of(f"tenant:{default_tenant}".encode())
        self._open = None if keys else Caller(default_tenant, admin_key is None, everyone, settings.limits)
        for key in keys:
            digest = _digest_of(key.secret, f"The key of tenant {key.tenant!r}", "api_keys")
            if digest in self._callers:
                raise ConfigError(f"An API key of tenant {key.tenant!r} is configured twice.", "api_keys")
            own = settings.limits.overridden_by(key.limits)
            self._callers[digest] = Caller(key.tenant, key.admin, _owner_of(digest), own, key.reuse)
        if admin_key is not None:
            digest = _digest_of(admin_key, "The administrator's key", "admin_key")
            if digest in self._callers:
                raise ConfigError("The administrator's key is also an API key; use a different one.", "admin_key")
            self._callers[digest] = Caller(default_tenant, True, _owner_of(digest), Limits(), only_admin=True)
        self.has_administrators = any(caller.admin for caller in self._callers.values())

    @property
    def needs_key(self) -> bool:
        """Whether a request needs an API key."""
        return self._open is None

    @property
    def needs_admin_key(self) -> bool:
        """Whether an admin request needs a key."""
        return self._open is None or not self._open.admin

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller with the key of the ``Authorization: Bearer`` header. Raises Unauthenticated.

        Without API keys, that is everyone, and the administrator if the key is the administrator's.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else ""
        found = self._callers.get(hashlib.sha256(given.encode()).digest()) if given else None
        caller = found or self._open
        if caller is None:
            raise Unauthenticated("Unknown API key.") if given else _no_key()
        return caller

    def api_caller(self, caller: Caller) -> Caller:
        """As whom the caller uses other routes than the admin ones: without API keys, as everyone.

        Raises Unauthenticated for the administrator's own key if there are API keys.
        """
        if self._open is not None:
            return self._open
        if caller.only_admin:
            raise Unauthenticated("The administrator's key is valid for the admin routes only.")
        return caller

    def require_administrator(self, caller: Caller) -> None:
        """Check that the caller may use the admin routes.

        Raises PermissionDenied for a key that is not an administrator's, or if no administrator has one, and
        Unauthenticated without a key.
        """
        if caller.admin:
            return
        if not self.has_administrators:
            raise self.no_administrators()
        if caller is self._open:
            raise _no_key()
        raise PermissionDenied("This request needs an administrator's key.")

    @staticmethod
    def no_administrators() -> PermissionDenied:
        """The error of an admin request that no key would allow."""
        return PermissionDenied("No administrator's key is configured; set gateway.admin_key.")


def _no_key() -> Unauthenticated:
    return Unauthenticated("No API key; send 'Authorization: Bearer <key>'.")


def namespace_of(tenant: str) -> str:
    """The namespace that separates a tenant's KV from others'. A digest, so it is safe in keys and file names."""
    return hashlib.sha256(f"ragtree-namespace:{tenant}".encode()).hexdigest()[:32]


def _owner_of(secret: bytes) -> str:
    return hashlib.sha256(b"ragtree-quota:" + secret).hexdigest()[:32]


def _digest_of(key: SecretStr, whose: str, setting: str) -> bytes:
    secret = key.get_secret_value()
    if not secret.startswith(_DIGEST_PREFIX):
        return hashlib.sha256(secret.encode()).digest()
    try:
        digest = bytes.fromhex(secret.removeprefix(_DIGEST_PREFIX))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(f"{whose} is not a hexadecimal SHA-256 digest.", setting)
    return digest
