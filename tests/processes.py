"""Which of a process's descendants is vLLM's engine."""

from contextlib import suppress

import psutil

_MARKS = ("EngineCore", "multiprocessing.spawn")
"""Its title, and what it is called without one.

The title goes where the environment began, so it cannot be set when the first variable of the environment has been
given another value since the start; and Ray passes its workers their variables in an order that differs each time.
"""


def engines_under(process: psutil.Process) -> set[psutil.Process]:
    """The engines' processes that run now, however deep below."""
    return {child for child in process.children(recursive=True) if _is_engine(child)}


def _is_engine(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        called = " ".join([process.name(), *process.cmdline()])
        return any(mark in called for mark in _MARKS)
    return False
