"""Refusals stay out of Serve's log, whose lines have a traceback each; defects stay in it."""

import logging

import pytest
from ray.serve._private.constants import SERVE_LOGGER_NAME

from protocol.errors import InternalError, Overloaded, UnknownJob
from services.observability.settings import ObservabilitySettings


@pytest.fixture
def serve_log():
    logger = logging.getLogger(SERVE_LOGGER_NAME)
    filters, logger.filters = logger.filters, []
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append
    logger.addHandler(handler)
    ObservabilitySettings().configure_logging()
    ObservabilitySettings().configure_logging()
    yield logger, lines
    logger.removeHandler(handler)
    logger.filters = filters


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (UnknownJob("no job has this id"), False),
        (Overloaded("the queue is full"), False),
        (InternalError("a defect"), True),
        (KeyError("a defect"), True),
    ],
)
def test_refusals_are_not_in_the_log_of_serve(serve_log, error, is_logged):
    logger, lines = serve_log
    try:
        raise error
    except type(error):
        logger.exception("Request failed.")
    assert bool(lines) == is_logged


def test_lines_without_an_error_stay(serve_log):
    logger, lines = serve_log
    logger.error("something else")
    assert len(lines) == 1
    assert len(logger.filters) == 1
