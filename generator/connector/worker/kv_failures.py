"""How failures of KV jobs are logged: the engine goes on without the copy."""

import structlog

from generator.tiers.base import TierError

log = structlog.get_logger(__name__)


def warn(event: str, error: Exception, **facts: object) -> None:
    """Log a failure. Errors of tiers take one line; anything else is a defect and is logged with its traceback."""
    expected = isinstance(error, (TierError, OSError))
    log.warning(event, error=f"{type(error).__name__}: {error}", exc_info=None if expected else error, **facts)
