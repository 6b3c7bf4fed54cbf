"""The HTTP client of the command line. It uses the public API only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import stamina
from httpx_sse import connect_sse

from protocol.errors import DeployFailed, RagtreeError

_UNAVAILABLE = 503
_CACHE = "/v1/admin/cache"
_ADAPTERS = "/v1/admin/adapters"


class RequestFailed(RagtreeError):
    """The stack answered a request with an error; ``error`` is the error object that it sent."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('message')} ({error.get('code')}, HTTP {status})", error.get("param"))
        self.status = status
        self.error = error


class StackUnreachable(RagtreeError):
    """No stack answers at the given address."""

    code = "unreachable"


class ConnectionBroken(StackUnreachable):
    """The connection broke during a request."""


class NotReady(NamedTuple):
    """Why a stack does not answer queries yet. ``final`` means that waiting does not help."""

    reason: str
    final: bool


def _is_transient(error: Exception) -> bool:
    return isinstance(error, ConnectionBroken) or (isinstance(error, RequestFailed) and error.status == _UNAVAILABLE)


# A restarted part is back within half a minute. These requests may be retried: a document is stored only once.
_retried = stamina.retry(on=_is_transient, attempts=None, timeout=60.0, wait_initial=0.2, wait_max=5.0)


class StackClient:
    """Client of one stack. Every call may raise RequestFailed or StackUnreachable."""

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
        """Return None if the stack answers queries, else the reason why not."""
        try:
            response = self._http.get("/readyz")
        except httpx.TransportError:
            return NotReady("the gateway does not answer yet", final=False)
        if response.is_success:
            return None
        error = _error_of(response)
        return NotReady(error.get("message", "not ready"), final=error.get("code") == DeployFailed.code)

    def query(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a query and yield its events."""
        with (
            _reported(self.url),
            connect_sse(self._http, "POST", "/query", json={**body, "stream": True}) as source,
        ):
            if not source.response.is_success:
                source.response.read()
                _raise_for(source.response)
            for event in source.iter_sse():
                yield event.json()

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        """Search without an answer, and return the passages."""
        return self._call("POST", "/search", json=body)

    @_retried
    def put_document(
        self, collection: str, document_id: str, content: bytes, media_type: str, filename: str
    ) -> dict[str, Any]:
        """Upload a document and return its ingestion job. Retries while the stack is unavailable."""
        path = f"{_documents(collection)}/{quote(document_id, safe='')}"
        headers = {"Content-Type": media_type}
        return self._call("PUT", path, content=content, headers=headers, params={"filename": filename})

    @_retried
    def put_batch(self, collection: str, jsonl: bytes) -> dict[str, Any]:
        """Upload JSON lines and return their ingestion job. Retries while the stack is unavailable."""
        headers = {"Content-Type": "application/x-ndjson"}
        return self._call("POST", f"{_documents(collection)}:batch", content=jsonl, headers=headers)

    @_retried
    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job's current state."""
        return self._call("GET", f"/v1/jobs/{job_id}")

    def collections(self) -> list[dict[str, Any]]:
        """Return the collections and their sizes."""
        data: list[dict[str, Any]] = self._call("GET", "/v1/collections")["data"]
        return data

    def graph(
        self, collection: str, labels: Sequence[str], max_depth: int, max_nodes: int, max_relations: int
    ) -> dict[str, Any]:
        """Return the part of a collection's graph around the entities that ``labels`` name, or its middle."""
        path = f"/v1/collections/{quote(collection, safe='')}/graph"
        limits = {"max_depth": max_depth, "max_nodes": max_nodes, "max_relations": max_relations}
        return self._call("GET", path, params={"label": list(labels), **limits})

    def cache_stats(self) -> dict[str, Any]:
        """Return the contents of the cache's tiers."""
        return self._call("GET", f"{_CACHE}/stats")

    def cache_tree(self, depth: int, limit: int) -> dict[str, Any]:
        """Return the ``limit`` most used nodes of the knowledge tree, down to ``depth`` documents."""
        return self._call("GET", f"{_CACHE}/tree", params={"depth": depth, "limit": limit})

    def warm_cache(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start to warm the cache with past queries' documents; return the warm-up job."""
        return self._call("POST", f"{_CACHE}/warm", json=body)

    @_retried
    def warm_up(self, job_id: str) -> dict[str, Any]:
        """Return the current state of a warm-up job."""
        return self._call("GET", f"{_CACHE}/warm/{job_id}")

    def precompute(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start to compute documents' KV ahead of time; return the precomputation."""
        return self._call("POST", f"{_CACHE}/precompute", json=body)

    @_retried
    def precomputation(self, job_id: str) -> dict[str, Any]:
        """Return the current state of a precomputation."""
        return self._call("GET", f"{_CACHE}/precompute/{quote(job_id, safe='')}")

    def cancel_precomputation(self, job_id: str) -> dict[str, Any]:
        """Cancel a precomputation; return its last state."""
        return self._call("DELETE", f"{_CACHE}/precompute/{quote(job_id, safe='')}")

    def adapters(self) -> dict[str, Any]:
        """The adapters that are served."""
        return self._call("GET", _ADAPTERS)

    def load_adapter(self, name: str, source: str) -> dict[str, Any]:
        """Load an adapter from a folder of the stack's machines, or from the hub, however long that takes."""
        return self._call("PUT", f"{_ADAPTERS}/{quote(name, safe='')}", json={"source": source}, timeout=None)

    def unload_adapter(self, name: str) -> dict[str, Any]:
        """Unload an adapter."""
        return self._call("DELETE", f"{_ADAPTERS}/{quote(name, safe='')}")

    def pin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Pin or unpin a document in the cache."""
        return self._call("POST", f"{_CACHE}/pin", json=body)

    def clear_cache(self) -> dict[str, Any]:
        """Evict everything from the cache."""
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
        raise StackUnreachable(f"no stack answers at {url}; start one with `ragtree up`") from error
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
