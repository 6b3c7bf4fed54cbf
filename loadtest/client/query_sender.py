"""Send one query, read its stream and record the outcome."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
from locust.clients import ResponseContextManager

from loadtest.client.answer_reader import AnswerReader
from loadtest.client.http_client import OneRequestClient
from loadtest.client.latency import Latency
from loadtest.client.response_outcome import refusal_or_failure, root_cause
from loadtest.reporting.request_records import Outcome, QueryRecord
from loadtest.settings import LoadSettings
from loadtest.traffic.traffic import Arrival

# Compression would delay events.
_HEADERS = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Connection": "close"}


class QuerySender:
    """Sends the queries of arrivals, each with its own client from ``new_client``.

    ``on_latency`` receives latencies as soon as they are known.
    """

    def __init__(
        self,
        new_client: Callable[[], OneRequestClient],
        settings: LoadSettings,
        collection: str | None,
        start: float,
        on_latency: Callable[[Latency, float], None],
    ) -> None:
        self._new_client = new_client
        self._timeout = settings.timeout
        self._start = start
        self._on_latency = on_latency
        optional = {"collection": collection, "top_k": settings.top_k or None}
        self._body: dict[str, Any] = {"stream": True, "max_tokens": settings.max_tokens}
        self._body.update({name: value for name, value in optional.items() if value is not None})

    def send(self, arrival: Arrival, record: QueryRecord) -> None:
        """Send a query and read its answer. Everything learnt goes into the record, even if this is killed."""
        due = self._start + arrival.at
        answer = AnswerReader(due, self._on_latency)
        record.sent = time.monotonic() - self._start
        try:
            with (
                self._new_client() as client,
                client.post(
                    "/query",
                    json={**self._body, "query": arrival.query},
                    headers=_HEADERS,
                    stream=True,
                    catch_response=True,
                    timeout=self._timeout,
                ) as response,
            ):
                self._judge(response, arrival, answer, record)
                if record.outcome is Outcome.FAILED:
                    response.failure(record.reason)
                else:
                    response.success()
        finally:
            record.ended = time.monotonic() - self._start
            _note(answer, record)
        if record.outcome is Outcome.ANSWERED and answer.e2e is not None:
            self._on_latency(Latency.E2E, answer.e2e)

    def _judge(
        self, response: ResponseContextManager, arrival: Arrival, answer: AnswerReader, record: QueryRecord
    ) -> None:
        record.status = response.status_code
        if response.status_code != requests.codes.ok:
            record.outcome, record.reason = refusal_or_failure(response)
        else:
            try:
                record.outcome = self._read(response, arrival, answer)
                record.reason = answer.failure() if record.outcome is Outcome.FAILED else None
            except TimeoutError as error:
                record.outcome, record.reason = Outcome.FAILED, str(error)
            except Exception as error:
                # The client has no answer, whatever the error. Unhandled, the record would look like an aborted run.
                record.outcome, record.reason = Outcome.FAILED, f"the stream broke: {root_cause(error)}"
            finally:
                response.close()

    def _read(self, response: ResponseContextManager, arrival: Arrival, answer: AnswerReader) -> Outcome:
        deadline = self._start + arrival.at + self._timeout
        for chunk in _chunks(response):
            now = time.monotonic()
            answer.feed(chunk, now)
            if arrival.leaves_after is not None and answer.has_reached(arrival.leaves_after):
                return Outcome.DISCONNECTED
            if now > deadline:
                raise TimeoutError(f"no end within {self._timeout:g} s")
        return Outcome.ANSWERED if answer.failure() is None else Outcome.FAILED


def _chunks(response: ResponseContextManager) -> Iterator[bytes]:
    # Without chunked encoding, None would read until the stream ends. Single bytes are slow but arrive in time.
    chunked = getattr(response.raw, "chunked", False)
    chunks: Iterator[bytes] = response.iter_content(chunk_size=None if chunked else 1)
    return chunks


def _note(answer: AnswerReader, record: QueryRecord) -> None:
    record.query_id = answer.query_id
    record.ttfr, record.ttft, record.itl, record.e2e = answer.ttfr, answer.ttft, answer.itl, answer.e2e
    record.sources, record.cited, record.text = answer.sources, answer.cited, answer.text
    record.terminals = answer.terminals
    usage = answer.usage
    record.prompt_tokens = usage.get("prompt_tokens") or 0
    record.completion_tokens = usage.get("completion_tokens") or 0
    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
