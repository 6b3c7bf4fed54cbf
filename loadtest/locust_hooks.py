"""Hooks into Locust's events, registered on import."""

from typing import Any

from locust import events
from locust.runners import LocalRunner, Runner

from loadtest.errors import BadOption
from loadtest.settings import LoadSettings


def require_one_process(runner: Runner, **_given: Any) -> None:  # noqa: ANN401 - Locust's own
    """Refuse distributed runs: each process would send the same arrivals, and none would have all records."""
    if not isinstance(runner, LocalRunner):
        raise BadOption("this load test runs in one process, without --master, --worker and --processes")


events.init_command_line_parser.add_listener(LoadSettings.add_to)  # type: ignore[no-untyped-call]
events.init.add_listener(require_one_process)  # type: ignore[no-untyped-call]
