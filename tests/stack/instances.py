"""The generator's instances on a stack under test: which there are, what they run, and deploying them again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
from stacks import PATIENCE_S, StackUnderTest

# Ray Serve's own setting. By default it would notice load only every ten seconds.
NOTICES_LOAD = {"RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1"}

_REDEPLOY = """
import sys
import ray
from ray import serve
from services.serve import applications
from services.serve.applications import GENERATOR, generator_application
from services.config import load_config

# So that the load counts sooner. Ray Serve counts it every ten seconds.
applications.LOOK_BACK_S = 10.5

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
serve.run(generator_application(load_config()), name=GENERATOR, route_prefix=None)
"""


def running_on(stack: StackUnderTest) -> dict[str, int]:
    """Return the number of running requests of each instance that gets requests from the controller."""
    with stack.client() as client:
        answer = client.get("/v1/admin/cache/stats")
    # The controller does not answer while it starts.
    loads = answer.json()["instances"] if answer.status_code == 200 else []
    return {load["instance"]: load["running"] for load in loads if not load["retired"]}


def replicas(stack: StackUnderTest) -> list[psutil.Process]:
    return stack.processes("ServeReplica:generator")


def redeploy(stack: StackUnderTest, **changed: str) -> None:
    """Deploy the generator again, with changes to the stack's environment."""
    environment = {**stack.environment, "RAGTREE_DATA_DIR": str(stack.folder), **changed}
    ran = subprocess.run(
        [sys.executable, "-c", _REDEPLOY, stack.running.ray_address],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def terminal(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Read a stream up to its terminal event."""
    *_, last = events
    return last
