"""Where the parts become a stack: configuration, Ray Serve deployments, the composition root and the command line.

The only package that imports ray, and the only one that knows all the others.
"""

import os

RAY_ENVIRONMENT = {
    # User code on the replica's own loop: a handle hop costs half.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Comes with it, but the parts are called through handles: no HTTP port each, and no half minute to drain it.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    # A proxy that is gone is noticed by three of these in a row: with Ray's ten seconds each, nobody answers for half a
    # minute. What a check may take is left as it is, so that one that is busy stays.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    # Ray listens on every address, so it must ask who calls; processes of ours find the token in the home folder.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # A replica without GPUs must still see those of the machine: the engine takes them, not Ray.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Read by Ray when it is first imported, here and in the processes that it starts; what the user set wins."""

for _name, _value in RAY_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
