"""Refusals in the log of Ray Serve, which writes a traceback for every error that a replica's method raises."""

import logging

from protocol.errors import InternalError, RagtreeError

_SERVE_LOGGER = "ray.serve"


def leave_refusals_out() -> None:
    """Keep errors that RAGTree raises on purpose out of Serve's log; defects stay in it.

    Otherwise a caller whose requests are refused could fill the disk. The gateway logs a line for each request.
    """
    logging.getLogger(_SERVE_LOGGER).addFilter(_is_no_refusal)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, RagtreeError) or isinstance(error, InternalError)
