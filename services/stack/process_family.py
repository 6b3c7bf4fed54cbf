"""Ends a process together with everything that it has started."""

from collections.abc import Iterable
from contextlib import suppress

import psutil

_OUTLIVE_S = 10.0
"""How long Ray's processes may outlive the one that started them before they are killed."""


def end_family(process: psutil.Process, timeout_s: float) -> None:
    """Terminate a process, kill it after ``timeout_s`` seconds, and wait until its descendants are gone as well."""
    try:
        family = [process, *process.children(recursive=True)]
        process.terminate()
        process.wait(timeout_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        process.kill()
    await_end(family)


def await_end(processes: Iterable[psutil.Process]) -> None:
    """Wait until processes are gone that end by themselves, and kill those that take too long."""
    _, left = psutil.wait_procs(processes, timeout=_OUTLIVE_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_OUTLIVE_S)
