"""Calls to one Ray Serve deployment, over its handle.

A caller adds three things to a Serve handle:

- An error of the part arrives as itself, not wrapped in Ray's.
- A missing replica is an ``Unavailable`` error.
- A cancelled call, or a stream that is closed early, is cancelled on the replica too.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any

import structlog
from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import DeploymentStatus, ReplicaState

from protocol.errors import DeployFailed, EngineDied, InternalError, Overloaded, RagtreeError, Unavailable
from services.calls.connection import CallDropped

PATIENCE_S = 1.0
"""How long a replica may take to answer ``ready`` before Serve is asked whether there is a replica at all."""

_NO_PROCESS = (
    ActorDiedError,
    ActorUnavailableError,
    CallDropped,
    DeploymentUnavailableError,
    TaskCancelledError,
    RayServeException,
)

# Serve's message holds the traceback of a replica that failed to start. The last unindented `module.Error: ` line has
# the cause.
_ERROR = re.compile(r"^[A-Za-z_][\w.]*: ", re.MULTILINE)

_routable: dict[str, frozenset[str]] = {}
"""The replicas of each application, as Ray Serve last reported them to this process.

Not in the router's module: Serve copies a router class to other processes by value, with the globals of its module.
"""


class DeploymentCaller:
    """Calls methods of one deployment.

    ``part`` is the deployment's name in messages, ``absent`` the error that a missing replica raises.
    """

    def __init__(self, handle: DeploymentHandle, part: str, absent: type[Unavailable]) -> None:
        self.app: str = handle.app_name
        self._unary = handle
        self._streaming = handle.options(stream=True)
        self._part = part
        self._absent = absent

    def at(self, instance: str) -> "DeploymentCaller":
        """Return a caller of one replica of the generator; ``InstanceRouter`` routes its calls."""
        return DeploymentCaller(self._unary.options(multiplexed_model_id=instance), self._part, self._absent)

    async def call(self, method: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - the method's
        """Return the method's result. Raises what the method raises, or ``absent``."""
        response = getattr(self._unary, method).remote(*arguments, **named)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:
            raise self.translated(error) from error

    async def stream(self, method: str, *arguments: object, **named: object) -> AsyncGenerator[Any, None]:
        """Yield what the method yields. Closing the iterator cancels the method. Raises as ``call`` does."""
        response = getattr(self._streaming, method).remote(*arguments, **named)
        ended = False
        try:
            async for item in response:
                yield item
            ended = True
        except Exception as error:
            ended = True
            raise self.translated(error) from error
        finally:
            # Serve does not notice by itself that the reader is gone.
            if not ended:
                response.cancel()

    async def ready(self) -> None:
        """Return when a replica says that it is ready.

        Raises as ``call`` does. If no replica answers, the error says why: DeployFailed if Serve has given up.
        """
        answer = asyncio.create_task(self.call("ready"))
        try:
            # Serve queues a call to a deployment without replicas, with no time limit.
            await asyncio.wait({answer}, timeout=PATIENCE_S)
            if not answer.done() or isinstance(answer.exception(), self._absent):
                error = await why_no_replica(self.app, self._part, self._absent)
                if error is not None:
                    raise error
            await answer
        finally:
            answer.cancel()

    def translated(self, error: Exception) -> RagtreeError:
        """Return the error that the part has raised, or ``absent`` if no process of it answers."""
        return translated(error, self._part, self._absent)


log = structlog.get_logger(__name__)


def translated(error: Exception, part: str, absent: type[Unavailable]) -> RagtreeError:
    """Return the error that a ``part`` has raised, not wrapped in Ray's; ``absent`` if no process of it answers."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RagtreeError):
        return cause
    if isinstance(cause, BackPressureError):
        return Overloaded(f"the {part} has no room for another request")
    if isinstance(cause, _NO_PROCESS):
        message = f"the {part} is not available: it is starting or restarting"
        if absent is EngineDied and isinstance(cause, CallDropped):
            return EngineDied(message, begun=cause.begun)
        return absent(message)
    log.error("part_failed", part=part, error=repr(cause), exc_info=error)
    return InternalError(f"the {part} failed")


async def why_no_replica(app: str, part: str, absent: type[Unavailable]) -> Unavailable | None:
    """Return the error that says why an application's one deployment does not answer; None if a replica runs.

    The error is DeployFailed if Serve has given up starting the deployment, else ``absent``.
    """
    application = (await asyncio.to_thread(serve.status)).applications.get(app)
    if application is None or not application.deployments:
        return absent(f"the {part} is not deployed yet")
    (deployment,) = application.deployments.values()
    if deployment.replica_states.get(ReplicaState.RUNNING):
        return None
    if deployment.status is DeploymentStatus.DEPLOY_FAILED:
        return DeployFailed(f"the {part} cannot start: {_cause(deployment.message)}")
    if _ERROR.search(deployment.message):
        return absent(f"the {part} failed to start and will be tried again: {_cause(deployment.message)}")
    return absent(f"the {part} is starting")


def _cause(message: str) -> str:
    return _ERROR.split(message)[-1].strip()


def set_replicas(app: str, replicas: Iterable[str]) -> None:
    """Replace the set of replicas that Serve routes to."""
    _routable[app] = frozenset(replicas)


def replicas_of(app: str) -> Collection[str]:
    """Return the replicas that Serve routes to: none that drains or is gone, and none before the first call."""
    return _routable.get(app, frozenset())
