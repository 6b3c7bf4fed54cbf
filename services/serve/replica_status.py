"""Asks Ray Serve why a deployment has no running replica."""

import asyncio
import re

from ray import serve
from ray.serve.schema import DeploymentStatus, ReplicaState

from protocol.errors import DeployFailed, Unavailable

# Serve's message holds the traceback of a replica that failed to start. The last unindented `module.Error: ` line has
# the cause.
_ERROR = re.compile(r"^[A-Za-z_][\w.]*: ", re.MULTILINE)


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
