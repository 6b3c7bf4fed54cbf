"""The configured object store: requests to it, with the errors of tiers instead of the library's."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store

from generator.settings import ObjectStoreSettings
from generator.tiers.base import Damage, KvBroken, KvMissing, TierUnavailable
from generator.tiers.circuit_breaker import CircuitBreaker
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from obstore import GetOptions

_PART_BYTES = 8 << 20
_LISTED_AT_ONCE = 1000
_LONGEST_REASON = 300
# S3's status, and what the library says of a folder and of memory.
_OUT_OF_RANGE = re.compile("416 Range|range was invalid|Invalid range")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
# A query may have a signature that gives access. A body may repeat what was signed.
_PRIVATE = re.compile(r"\?[^\s)\"']*|<.*")
_KIND = re.compile(r"\bkind: (\w+)")
_STORES: dict[str, tuple[Any, str]] = {
    "s3": (S3Store, "endpoint"),
    "gs": (GCSStore, "base_url"),
    "az": (AzureStore, "endpoint"),
}
"""The library's class for a scheme, and what it calls an endpoint."""
# A request that fails at once, as when a connection has been closed, is made again within its time.
_RETRY_SHARE = 0.25


class Fetched(NamedTuple):
    """A part of an object, the ``size`` of the whole object in bytes, and the tag of its version, if there is one."""

    data: memoryview
    size: int
    e_tag: str | None


class ObjectRequests:
    """Requests to ``store``, which is called ``name`` in logs and errors, by path.

    Each request raises TierUnavailable if the store does not answer, or refuses it. Then none follows for a pause:
    reading and writing have separate pauses, because a store may allow only one. Thread-safe.

    The library's error is never the cause of the one that is raised, because its text may have what is private.
    """

    def __init__(self, store: ObjectStore, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.reading = CircuitBreaker(name, "reading", clock)
        self.writing = CircuitBreaker(name, "writing", clock)
        self._store = store

    def get(self, path: str, begin: int, end: int, e_tag: str | None = None) -> Fetched:
        """The bytes of an object from ``begin`` up to ``end``, or to its own end.

        Raises KvMissing, or KvBroken if it is too short, or another version than that with the ``e_tag``.
        """
        with self.reading.request(), self._available(), _typed(path):
            options: GetOptions = {"range": (begin, end)}
            if e_tag is not None:
                options["if_match"] = e_tag
            result = obstore.get(self._store, path, options=options)
            meta = result.meta
            return Fetched(memoryview(result.bytes()), meta["size"], meta["e_tag"])

    def head(self, path: str) -> Fetched:
        """An object without its bytes. Raises KvMissing."""
        with self.reading.request(), self._available(), _typed(path):
            meta = obstore.head(self._store, path)
            return Fetched(memoryview(b""), meta["size"], meta["e_tag"])

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """All objects below a folder: their paths and sizes in bytes."""
        with self.reading.request(), self._available():
            for chunk in obstore.list(self._store, folder, chunk_size=_LISTED_AT_ONCE):
                yield from ((meta["path"], meta["size"]) for meta in chunk)

    def put(self, path: str, data: memoryview) -> None:
        """Create or replace an object. It appears whole or not at all. A large one is sent in parts."""
        with self.writing.request(), self._available():
            obstore.put(self._store, path, data, chunk_size=_PART_BYTES)

    def create(self, path: str, data: bytes) -> None:
        """Create an object, unless there is one."""
        with self.writing.request(), self._available(), suppress(AlreadyExistsError):
            obstore.put(self._store, path, data, mode="create")

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""
        with self.writing.request(), self._available(), suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    @contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise TierUnavailable(f"a request to {self.name} failed: {_reason(error)}") from None


@contextmanager
def _typed(path: str) -> Iterator[None]:
    """Tell what the store says about the object from other errors, which pass."""
    try:
        yield
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise
        raise KvMissing(f"there is no object {path}") from None
    except PreconditionError:
        raise KvBroken(Damage.CHANGED, f"the object {path} was replaced while it was read") from None
    except BaseError as error:
        if _OUT_OF_RANGE.search(_reason(error)):
            raise KvBroken(Damage.SIZE, f"the object {path} is too short") from None
        raise


def _reason(error: Exception) -> str:
    """What has failed, without what is private: the end of the library's text, and the kinds of its causes."""
    text, _, details = str(error).partition("\n")
    reason = _PRIVATE.sub("", text).rpartition(" - ")[2][:_LONGEST_REASON].strip(" :")
    kinds = ", ".join(dict.fromkeys(_KIND.findall(details)))
    return f"{reason} ({kinds})" if kinds else reason


def open_store(settings: ObjectStoreSettings) -> ObjectRequests:
    """Requests to the configured store. Makes none yet. Raises ConfigError if the settings name no store.

    Credentials come from the environment, as the library reads them.
    """
    scheme = urlsplit(settings.url).scheme
    try:
        if scheme == "file":
            store: ObjectStore = LocalStore(Path(unquote(urlsplit(settings.url).path)), mkdir=True)
        else:
            store = _bucket(settings, scheme)
    except (BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the object store {settings.url} cannot be opened: {reason}") from error
    return ObjectRequests(store, settings.url)


def _bucket(settings: ObjectStoreSettings, scheme: str) -> ObjectStore:
    kind, endpoint = _STORES[scheme]
    options = {endpoint: settings.endpoint, "region": settings.region}
    store: ObjectStore = kind.from_url(
        settings.url,
        config={name: value for name, value in options.items() if value is not None},
        client_options={
            "allow_http": settings.allow_http,
            "timeout": timedelta(seconds=settings.timeout_s * (1 - _RETRY_SHARE)),
        },
        retry_config={
            "max_retries": 1,
            "retry_timeout": timedelta(seconds=settings.timeout_s * _RETRY_SHARE),
            "backoff": {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50)},
        },
    )
    return store
