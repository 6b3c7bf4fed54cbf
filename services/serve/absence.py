"""Why a deployment has no replica that answers, in Ray Serve's own words."""

import asyncio
import re

from ray import serve
from ray.serve.schema import DeploymentStatus, ReplicaState

from protocol.errors import DeployFailed, Unavailable

# Serve quotes the whole traceback of a replica that could not start; its last unindented `module.Error: ` is the cause.
_ERROR = re.compile(r"^[A-Za-z_][\w.]*: ", re.MULTILINE)


async def absence(app: str, part: str, absent: type[Unavailable]) -> Unavailable | None:
    """The error to raise for the one deployment of an application; None when a replica of it runs.

    It is DeployFailed when Serve has given up starting it, else ``absent``.
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
        return absent(f"the {part} did not start, and is tried again: {_cause(deployment.message)}")
    return absent(f"the {part} is starting")


def _cause(message: str) -> str:
    return _ERROR.split(message)[-1].strip()
