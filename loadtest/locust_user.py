"""The Locust user that sends the whole load."""

import logging

import gevent
from locust import HttpUser, task
from locust.exception import StopUser

from loadtest.client.http_client import OneRequestClient
from loadtest.client.latency import Latency
from loadtest.errors import LoadTestError
from loadtest.load_run import LoadRun
from loadtest.reporting.request_records import QueryRecord
from loadtest.settings import LoadSettings

_log = logging.getLogger(__name__)


class QueryUser(HttpUser):
    """Sends all arrivals of the run, each in its own greenlet.

    A Locust user waits for its answers, so a load of many users would be a closed loop. There is always exactly one
    user. The run ends when the schedule does.
    """

    host = "http://127.0.0.1:8080"
    fixed_count = 1

    _run: LoadRun | None = None

    def on_start(self) -> None:
        """Prepare the stack."""
        try:
            self._run = LoadRun(str(self.host), LoadSettings.of(self.environment.parsed_options))
        except (LoadTestError, OSError) as error:
            self._fail(error)
            raise StopUser from error

    @task
    def run_traffic(self) -> None:
        """Send all traffic, once."""
        assert self._run is not None
        try:
            self._run.drive(lambda: OneRequestClient(self), self._on_latency, self._on_refused)
            # Write the report first: ending the test kills its users.
            self.on_stop()
        except OSError as error:
            self._fail(error)
        else:
            self._end_test()
        raise StopUser

    def on_stop(self) -> None:
        """Write the report, however the run ended."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _on_latency(self, latency: Latency, seconds: float) -> None:
        self._report("SSE", latency, seconds)

    def _on_refused(self, record: QueryRecord) -> None:
        name = f"{record.status} {record.reason}".rstrip()
        self._report("refused", name, (record.ended or 0.0) - record.at)

    def _report(self, kind: str, name: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=seconds * 1000, response_length=0, exception=None, context={}
        )

    def _fail(self, error: Exception) -> None:
        _log.error("%s", error)
        self.environment.process_exit_code = 1
        self._end_test()

    def _end_test(self) -> None:
        # Use another greenlet, because ending the test waits for its users.
        headless = self.environment.parsed_options is not None and self.environment.parsed_options.headless
        runner = self.environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if headless else runner.stop)
