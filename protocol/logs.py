"""Structured logging for every process of the stack."""

import sys
from typing import Literal

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]


def configure_logging(level: LogLevel = "info", style: LogFormat = "auto") -> None:
    """Send structlog's events to standard error: JSON lines, or text for people; ``auto`` means text on a terminal.

    Every line carries the values bound to the context (``request_id``, ``query_id``, ``trace_id``).
    """
    for_people = sys.stderr.isatty() if style == "auto" else style == "console"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if for_people else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
