"""What went wrong with a call of another process, as an error of our own."""

import structlog
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from protocol.errors import InternalError, Overloaded, RagtreeError, Unavailable

log = structlog.get_logger(__name__)

_NO_PROCESS = (
    ActorDiedError,
    ActorUnavailableError,
    DeploymentUnavailableError,
    TaskCancelledError,
    RayServeException,
)


def translated(error: Exception, part: str, absent: type[Unavailable]) -> RagtreeError:
    """Return the error that a ``part`` has raised, not wrapped in Ray's; ``absent`` if no process of it answers."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RagtreeError):
        return cause
    if isinstance(cause, BackPressureError):
        return Overloaded(f"the {part} has no room for another request")
    if isinstance(cause, _NO_PROCESS):
        return absent(f"the {part} is not available: it is starting or restarting")
    log.error("part_failed", part=part, error=repr(cause), exc_info=error)
    return InternalError(f"the {part} failed")
