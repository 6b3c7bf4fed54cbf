"""Ingest and delete documents while queries run."""

import time
from collections import deque
from collections.abc import Callable
from urllib.parse import quote

from loadtest.client.http_client import OneRequestClient
from loadtest.client.response_outcome import refusal_or_failure
from loadtest.reporting.request_records import Outcome, WriteAction, WriteRecord
from loadtest.settings import LoadSettings
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from loadtest.traffic.traffic import Traffic

_DEFAULT_COLLECTION = "default"


class DocumentWriter:
    """Ingests its own documents into the queried collection and deletes them again, oldest first."""

    def __init__(
        self, new_client: Callable[[], OneRequestClient], settings: LoadSettings, traffic: Traffic, start: float
    ) -> None:
        self._new_client = new_client
        self._start = start
        collection = quote(traffic.collection or _DEFAULT_COLLECTION, safe="")
        self._path = f"/v1/collections/{collection}/documents"
        self._texts = SyntheticCorpus(0, settings.document_words, settings.seed)
        self._count = 0
        self._stored: deque[str] = deque()

    def write(self, record: WriteRecord) -> None:
        """Perform the action of a record and store the outcome in it.

        A deletion without any document left does nothing and leaves ``document_id`` empty.
        """
        if record.action is WriteAction.INGEST:
            document = self._texts.document(f"written-{self._count}")
            self._count += 1
            # From now on it may be stored, whatever the response is.
            self._stored.append(document.id)
            self._send("PUT", document.id, record, document.text.encode())
        elif self._stored:
            document_id = self._stored.popleft()
            self._send("DELETE", document_id, record)
            if record.outcome is not Outcome.ANSWERED:
                self._stored.append(document_id)

    def delete_all(self) -> None:
        """Delete the remaining documents as far as the stack allows."""
        for _ in range(len(self._stored)):
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
                # Its upload was refused, or an earlier deletion succeeded although its response was a refusal.
                record.outcome = Outcome.ANSWERED
            else:
                record.outcome, record.reason = refusal_or_failure(response)
            if record.outcome is Outcome.FAILED:
                response.failure(record.reason)
            else:
                response.success()
