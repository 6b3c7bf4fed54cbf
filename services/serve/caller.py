"""Calls to one Ray Serve deployment.

A caller adds three things to a Serve handle:

- An error of the part arrives as itself, not wrapped in Ray's.
- A missing replica is an ``Unavailable`` error.
- A cancelled call, or a stream that is closed early, is cancelled on the replica too.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ray.serve.handle import DeploymentHandle

from protocol.errors import Unavailable
from services.serve.remote_errors import translated
from services.serve.replica_status import why_no_replica

PATIENCE_S = 1.0
"""How long a replica may take to answer ``ready`` before Serve is asked whether there is a replica at all."""


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
            raise translated(error, self._part, self._absent) from error

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
            raise translated(error, self._part, self._absent) from error
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
