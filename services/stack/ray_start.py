"""Starts Ray on this machine for a stack."""

from collections.abc import Set
from contextlib import suppress
from typing import Any

import psutil
import ray
import structlog

from services.stack.run_state import StartFailed

log = structlog.get_logger(__name__)


def start_ray(options: dict[str, Any]) -> None:
    """Start a Ray for this process, with these options of ``ray.init``, and once more if that fails.

    Ray waits 30 s for its node, which is not always enough on a busy machine. It also picks ports that another program
    may take before Ray binds them. Raises StartFailed if Ray fails twice.
    """
    before = _children()
    try:
        _init_ray(options)
    except Exception as error:  # Ray raises nothing narrower.
        log.warning("Ray did not start, and is started once more", reason=str(error))
        # Ray's own clean-up comes only when this process ends.
        _kill(_children() - before)
        try:
            _init_ray(options)
        except Exception as again:
            raise StartFailed(f"Ray did not start: {again} (its logs: /tmp/ray/session_latest/logs)") from again


def _init_ray(options: dict[str, Any]) -> None:
    ray.init(address="local", include_dashboard=False, logging_level="WARNING", **options)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _kill(processes: Set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)
