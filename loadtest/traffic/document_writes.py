"""Documents that go in and out while queries run."""

import time
from collections import deque
from collections.abc import Callable
from urllib.parse import quote

from loadtest.answers.client import OneRequestClient
from loadtest.answers.verdicts import refusal_or_failure
from loadtest.options import LoadSettings
from loadtest.reporting.records import Outcome, WriteAction, WriteRecord
from loadtest.traffic.corpus import SyntheticCorpus
from loadtest.traffic.traffic import Traffic

_DEFAULT_COLLECTION = "default"


class DocumentWriter:
    """Puts documents of its own into the collection that is asked, and deletes them again, the oldest first."""

    def __init__(
        self, new_client: Callable[[], OneRequestClient], settings: LoadSettings, traffic: Traffic, start: float
    ) -> None:
        self._new_client = new_client
        self._start = start
        collection = quote(traffic.collection or _DEFAULT_COLLECTION, safe="")
        self._path = f"/v1/collections/{collection}/documents"
        self._texts = SyntheticCorpus(0, settings.document_words, settings.seed)
        self._count = 0
        self._there: deque[str] = deque()

    def write(self, record: WriteRecord) -> None:
        """Do what the record says, and write down what became of it.

        Nothing is deleted while no document of its own is there; then the record names none.
        """
        if record.action is WriteAction.INGEST:
            document = self._texts.document(f"written-{self._count}")
            self._count += 1
            # From now on it may be there, whatever becomes of the response.
            self._there.append(document.id)
            self._send("PUT", document.id, record, document.text.encode())
        elif self._there:
            document_id = self._there.popleft()
            self._send("DELETE", document_id, record)
            if record.outcome is not Outcome.ANSWERED:
                self._there.append(document_id)

    def clear(self) -> None:
        """Delete what is left, as far as the stack lets it."""
        for _ in range(len(self._there)):
            self.write(WriteRecord(action=WriteAction.DELETE, at=time.monotonic() - self._start))

    def _send(self, method: str, document_id: str, record: WriteRecord, body: bytes | None = None) -> None:
        record.document_id = document_id
        with (
            self._new_client() as client,
            client.request(
                method,
                f"{self._path}/{document_id}",
                name=f"{self._path}/[id]",
                data=body,
                headers={"Content-Type": "text/plain", "Connection": "close"},
                catch_response=True,
            ) as response,
        ):
            record.ended = time.monotonic() - self._start
            record.status = response.status_code
            if response.status_code in (200, 202):
                record.outcome = Outcome.ANSWERED
            elif response.status_code == 404 and method == "DELETE":
                # It was refused when it was put, or had been deleted by an attempt that was then refused.
                record.outcome = Outcome.ANSWERED
            else:
                record.outcome, record.reason = refusal_or_failure(response)
            if record.outcome is Outcome.FAILED:
                response.failure(record.reason)
            else:
                response.success()
