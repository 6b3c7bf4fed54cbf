"""The load test as Locust runs it: one user, who stands for all clients."""

import logging

import gevent
from locust import HttpUser, task
from locust.exception import StopUser

from loadtest.answers.answer import Latency
from loadtest.answers.client import OneRequestClient
from loadtest.errors import LoadTestError
from loadtest.options import LoadSettings
from loadtest.reporting.records import QueryRecord
from loadtest.run import LoadRun

_log = logging.getLogger(__name__)


class QueryUser(HttpUser):
    """Sends every arrival of the run, each in a greenlet of its own.

    One of Locust's users waits for its answers, so more of them close the loop. There is one, whatever number is asked
    for, and the run ends by itself when the schedule does.
    """

    host = "http://127.0.0.1:8080"
    fixed_count = 1

    _run: LoadRun | None = None

    def on_start(self) -> None:
        """Ready the stack."""
        try:
            self._run = LoadRun(str(self.host), LoadSettings.of(self.environment.parsed_options))
        except (LoadTestError, OSError) as error:
            self._give_up(error)
            raise StopUser from error

    @task
    def run_traffic(self) -> None:
        """Send all of it, once."""
        assert self._run is not None
        try:
            self._run.drive(lambda: OneRequestClient(self), self._measured, self._refused)
            # Before the test is ended, which ends whatever its users still do.
            self.on_stop()
        except OSError as error:
            self._give_up(error)
        else:
            self._end_test()
        raise StopUser

    def on_stop(self) -> None:
        """Write the report, however the run ended."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _measured(self, latency: Latency, seconds: float) -> None:
        self._report("SSE", latency, seconds)

    def _refused(self, record: QueryRecord) -> None:
        name = f"{record.status} {record.reason}".rstrip()
        self._report("refused", name, (record.ended or 0.0) - record.at)

    def _report(self, kind: str, name: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=seconds * 1000, response_length=0, exception=None, context={}
        )

    def _give_up(self, error: Exception) -> None:
        _log.error("%s", error)
        self.environment.process_exit_code = 1
        self._end_test()

    def _end_test(self) -> None:
        # In a greenlet of its own: ending the test waits for its users' ends.
        headless = self.environment.parsed_options is not None and self.environment.parsed_options.headless
        runner = self.environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if headless else runner.stop)
