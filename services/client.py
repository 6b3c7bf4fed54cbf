"""The HTTP client of the command line: what a user's own program would do, and nothing more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import stamina
from httpx_sse import connect_sse

from protocol.errors import DeployFailed, RagtreeError

_UNAVAILABLE = 503
_CACHE = "/v1/admin/cache"


class RequestFailed(RagtreeError):
    """The stack's word that a request failed, with the error object it sent."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('message')} ({error.get('code')}, HTTP {status})", error.get("param"))
        self.status = status
        self.error = error


class StackUnreachable(RagtreeError):
    """Nobody answers at the stack's address."""

    code = "unreachable"


class ConnectionBroken(StackUnreachable):
    """The connection broke while it was used."""


class NotReady(NamedTuple):
    """What a stack still lacks to answer queries; ``final`` says that it will not come by waiting."""

    reason: str
    final: bool


def _passes(error: Exception) -> bool:
    return isinstance(error, ConnectionBroken) or (isinstance(error, RequestFailed) and error.status == _UNAVAILABLE)


# A part that is restarted is back within half a minute. What is asked again may be: documents are stored once.
_patient = stamina.retry(on=_passes, attempts=None, timeout=60.0, wait_initial=0.2, wait_max=5.0)


class StackClient:
    """Talks to one stack over HTTP. Every call may raise RequestFailed or StackUnreachable."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, transport=transport)

    def readiness(self) -> NotReady | None:
        """None when queries are answered."""
        try:
            response = self._http.get("/readyz")
        except httpx.TransportError:
            return NotReady("the gateway does not answer yet", final=False)
        if response.is_success:
            return None
        error = _error_of(response)
        return NotReady(error.get("message", "not ready"), final=error.get("code") == DeployFailed.code)

    def query(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one streamed query."""
        with (
            _reported(self.url),
            connect_sse(self._http, "POST", "/query", json={**body, "stream": True}) as source,
        ):
            if not source.response.is_success:
                source.response.read()
                _raise_for(source.response)
            for event in source.iter_sse():
                yield event.json()

    @_patient
    def put_document(
        self, collection: str, document_id: str, content: bytes, media_type: str, filename: str
    ) -> dict[str, Any]:
        """Send a document; the job that takes it in. Sent again where the stack is not ready for it just now."""
        path = f"{_documents(collection)}/{quote(document_id, safe='')}"
        headers = {"Content-Type": media_type}
        return self._call("PUT", path, content=content, headers=headers, params={"filename": filename})

    @_patient
    def put_batch(self, collection: str, jsonl: bytes) -> dict[str, Any]:
        """Send JSON lines; the job that takes them in. Sent again as a document is."""
        headers = {"Content-Type": "application/x-ndjson"}
        return self._call("POST", f"{_documents(collection)}:batch", content=jsonl, headers=headers)

    @_patient
    def job(self, job_id: str) -> dict[str, Any]:
        """A job's state now."""
        return self._call("GET", f"/v1/jobs/{job_id}")

    def collections(self) -> list[dict[str, Any]]:
        """The collections and how much they hold."""
        data: list[dict[str, Any]] = self._call("GET", "/v1/collections")["data"]
        return data

    def cache_stats(self) -> dict[str, Any]:
        """What the cache's tiers hold."""
        return self._call("GET", f"{_CACHE}/stats")

    def cache_tree(self, depth: int, limit: int) -> dict[str, Any]:
        """The ``limit`` most used nodes of the knowledge tree, down to a depth in documents."""
        return self._call("GET", f"{_CACHE}/tree", params={"depth": depth, "limit": limit})

    def warm_cache(self, body: dict[str, Any]) -> dict[str, Any]:
        """Begin to bring past queries' documents into the cache; the job that does it."""
        return self._call("POST", f"{_CACHE}/warm", json=body)

    @_patient
    def warm_up(self, job_id: str) -> dict[str, Any]:
        """A warming up as it is now."""
        return self._call("GET", f"{_CACHE}/warm/{job_id}")

    def pin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Keep a document in the cache, or no longer."""
        return self._call("POST", f"{_CACHE}/pin", json=body)

    def clear_cache(self) -> dict[str, Any]:
        """Drop everything from the cache."""
        return self._call("POST", f"{_CACHE}/clear")

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        with _reported(self.url):
            response = self._http.request(method, path, **options)
        _raise_for(response)
        body: dict[str, Any] = response.json()
        return body


def _documents(collection: str) -> str:
    return f"/v1/collections/{quote(collection, safe='')}/documents"


@contextmanager
def _reported(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise StackUnreachable(f"no stack answers at {url}: `ragtree up` starts one") from error
    except httpx.TransportError as error:
        raise ConnectionBroken(f"the connection to {url} broke: {error or type(error).__name__}") from error


def _raise_for(response: httpx.Response) -> None:
    if not response.is_success:
        raise RequestFailed(response.status_code, _error_of(response))


def _error_of(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {"message": response.text[:200] or response.reason_phrase}
