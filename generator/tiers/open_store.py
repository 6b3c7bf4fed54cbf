"""Opens the object store that the configuration names."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store

from generator.settings import ObjectStoreSettings
from generator.tiers.object_requests import ObjectRequests
from protocol.errors import ConfigError

_STORES: dict[str, tuple[Any, str]] = {
    "s3": (S3Store, "endpoint"),
    "gs": (GCSStore, "base_url"),
    "az": (AzureStore, "endpoint"),
}
"""The library's class for a scheme, and what it calls an endpoint."""
# A request that fails at once, as when a connection has been closed, is made again within its time.
_RETRY_SHARE = 0.25


def open_store(settings: ObjectStoreSettings) -> ObjectRequests:
    """Requests to the configured store. Makes none yet. Raises ConfigError if the settings name no store.

    Credentials come from the environment, as the library reads them.
    """
    scheme = urlsplit(settings.url).scheme
    try:
        store = _folder(settings) if scheme == "file" else _bucket(settings, scheme)
    except (BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the object store {settings.url} cannot be opened: {reason}") from error
    return ObjectRequests(store, settings.url)


def _folder(settings: ObjectStoreSettings) -> ObjectStore:
    return LocalStore(Path(unquote(urlsplit(settings.url).path)), mkdir=True)


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
