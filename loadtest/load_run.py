"""One run: prepare the stack, send the traffic, record everything, write the report."""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

import gevent

from loadtest.client.document_writer import DocumentWriter
from loadtest.client.http_client import OneRequestClient
from loadtest.client.latency import Latency
from loadtest.client.query_sender import QuerySender
from loadtest.locust_process import END_ARRIVALS
from loadtest.report import write_report
from loadtest.reporting import run_facts
from loadtest.reporting.request_records import BeginRecord, Outcome, QueryRecord, RecordFile, WriteAction, WriteRecord
from loadtest.reporting.run_facts import RunFacts, StepFacts
from loadtest.settings import LoadSettings
from loadtest.stack_api import StackApi
from loadtest.traffic.open_loop import OpenLoop
from loadtest.traffic.traffic import Arrival, Traffic

_log = logging.getLogger(__name__)
_LEAD_S = 0.1


class LoadRun:
    """A run against the stack at ``url``, recorded in its own folder below ``settings.reports``.

    The constructor prepares the stack. It raises LoadTestError if that fails. Always call ``close``.
    """

    def __init__(self, url: str, settings: LoadSettings) -> None:
        self._settings = settings
        self._traffic = Traffic(settings)
        self._loop: OpenLoop | None = None
        with StackApi(url) as api:
            api.require_ready()
            if self._traffic.corpus and self._traffic.collection:
                api.ingest(self._traffic.corpus, self._traffic.collection)
            facts = self._facts(url, api.model())
        self.folder = run_facts.folder_for_now(settings.reports)
        facts.write(self.folder)
        self._records = RecordFile(self.folder)

    def drive(
        self,
        new_client: Callable[[], OneRequestClient],
        on_latency: Callable[[Latency, float], None],
        on_refused: Callable[[QueryRecord], None],
    ) -> None:
        """Send the traffic, each request with its own client. Returns when all requests have ended.

        ``on_latency`` receives latencies in seconds, ``on_refused`` the refused queries. The signal ``END_ARRIVALS``
        ends the traffic early.
        """
        # Start slightly in the future, so that the first arrival is not late.
        start = time.monotonic() + _LEAD_S
        loop = self._loop = OpenLoop(start, self._settings.max_open)
        gevent.signal_handler(END_ARRIVALS, loop.end)
        self._records.add(BeginRecord(start))
        sender = QuerySender(new_client, self._settings, self._traffic.collection, start, on_latency)
        writer = DocumentWriter(new_client, self._settings, self._traffic, start)

        def ask(arrival: Arrival) -> None:
            record = QueryRecord(number=arrival.number, at=arrival.at, query=arrival.query)
            try:
                sender.send(arrival, record)
            finally:
                self._records.add(record)
            if record.outcome is Outcome.REFUSED:
                on_refused(record)

        def write(record: WriteRecord) -> None:
            try:
                writer.write(record)
            finally:
                if record.document_id:
                    self._records.add(record)

        writers = [gevent.spawn(loop.run, self._writes(action), write, self._miss_write) for action in WriteAction]
        try:
            loop.run(self._traffic.arrivals(), ask, self._miss)
            gevent.joinall(writers)
            loop.join()
        finally:
            gevent.killall(writers)
        writer.delete_all()

    def close(self) -> None:
        """End open requests and write the report."""
        if self._loop is not None:
            self._loop.kill()
        self._records.close()
        write_report(self.folder)
        _log.info("Report: %s", self.folder / "report.md")

    def _writes(self, action: WriteAction) -> Iterator[WriteRecord]:
        rates = {WriteAction.INGEST: self._settings.ingest_rate, WriteAction.DELETE: self._settings.delete_rate}
        for at in self._traffic.times(action, rates[action]):
            yield WriteRecord(action=action, at=at)

    def _miss(self, arrival: Arrival) -> None:
        record = QueryRecord(number=arrival.number, at=arrival.at, query=arrival.query, outcome=Outcome.MISSED)
        self._records.add(record)

    def _miss_write(self, record: WriteRecord) -> None:
        record.outcome = Outcome.MISSED
        self._records.add(record)

    def _facts(self, url: str, model: str) -> RunFacts:
        steps = self._traffic.steps
        begins = accumulate((step.seconds for step in steps), initial=0.0)
        return RunFacts(
            url=url,
            model=model,
            started_at=run_facts.now(),
            command=run_facts.command(),
            machine=run_facts.machine(),
            settings=self._settings,
            collection=self._traffic.collection,
            steps=tuple(StepFacts(str(step), begin, step.seconds) for step, begin in zip(steps, begins, strict=False)),
            seconds=self._traffic.seconds,
        )
