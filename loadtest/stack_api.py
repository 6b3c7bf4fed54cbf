"""Prepare a stack for a load test over its HTTP API."""

import logging
import os
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from loadtest.errors import StackNotReady
from loadtest.traffic.synthetic_corpus import SyntheticCorpus

_log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)
_INGEST_S = 1800.0
_POLL_S = 0.5


def authorization() -> dict[str, str]:
    """Return the authorization header with the key in ``RAGTREE_API_KEY``, or no header without a key."""
    key = os.environ.get("RAGTREE_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


class StackApi:
    """A client of the stack at ``url``. Every call may raise StackNotReady."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.Client(base_url=url, headers=authorization(), timeout=60.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def require_ready(self) -> None:
        """Return if the stack serves queries."""
        self._call("GET", "/readyz")

    def model(self) -> str:
        """Return the id of the model."""
        return str(self._call("GET", "/v1/models")["data"][0]["id"])

    def ingest(self, corpus: SyntheticCorpus, collection: str) -> None:
        """Ingest the corpus and wait until it is stored. Documents that the stack already has are skipped."""
        _log.info("Ingesting %d documents into %s ...", len(corpus.documents), collection)
        path = f"/v1/collections/{quote(collection, safe='')}/documents:batch"
        headers = {"Content-Type": "application/x-ndjson"}
        jobs = [self._call("POST", path, content=batch, headers=headers)["job_id"] for batch in corpus.batches()]
        deadline = time.monotonic() + _INGEST_S
        for done, job in enumerate(jobs):
            _log.info("%d of %d batches are ingested", done, len(jobs))
            self._await_job(job, deadline)

    def _await_job(self, job_id: str, deadline: float) -> None:
        while (job := self._call("GET", f"/v1/jobs/{job_id}"))["status"] in ("queued", "in_progress"):
            if time.monotonic() > deadline:
                raise StackNotReady(f"the corpus was not ingested within {_INGEST_S:g} s")
            time.sleep(_POLL_S)
        if job["failed_documents"]:
            raise StackNotReady(f"{job['failed_documents']} documents were not ingested: {job['last_error']}")

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        try:
            response = self._http.request(method, path, **options)
            body: dict[str, Any] = response.raise_for_status().json()
        except httpx.ConnectError as error:
            raise StackNotReady(
                f"nothing answers at {self._url}. Start a stack there (`ragtree up -d` or `make demo`), or choose "
                "another one: `make loadtest URL=...`, `locust --host ...`"
            ) from error
        except httpx.HTTPStatusError as error:
            raise StackNotReady(f"{method} {path}: HTTP {error.response.status_code} {error.response.text}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise StackNotReady(f"{method} {path}: {error!r}") from error
        return body
