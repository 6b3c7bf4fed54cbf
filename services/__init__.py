"""Wires the parts into a stack: configuration, Ray Serve deployments, the composition root and the command line.

The only package that imports ray, and the only one that knows all the others.
"""

import os
import sys

RAY_ENVIRONMENT = {
    # Runs user code on the replica's own event loop, which halves the cost of a handle call.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # The option above enables it. The parts are called through handles, so they need no HTTP port, which would take
    # half a minute to drain.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    # The first option also calls replicas over gRPC, whose own limit is 4 MiB. The gateway bounds bodies.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    # A dead proxy is replaced after three failed checks. Ray's default of ten seconds each would mean half a minute of
    # downtime. The timeout of a check keeps its default, so that a busy proxy survives.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    # Ray listens on every address, so callers must authenticate. Our processes find the token in the home folder.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # A replica without Ray GPUs must still see the machine's GPUs: the engine allocates them, not Ray.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's default of 15 would have engines and searches wait for the threads that give way to them, and for all else
    # on the machine.
    "RAY_worker_niceness": "0",
}
"""Variables that Ray reads when it is first imported, here and in its child processes. The user's values win."""

for _name, _value in RAY_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

if not sys.stderr.isatty():
    # In a log, each update of a progress bar is a line. tqdm, which draws the bars of the model libraries and of vLLM,
    # reads the variable when it is first imported. A replica writes into a log even if the stack has a terminal.
    os.environ.setdefault("TQDM_DISABLE", "1")
