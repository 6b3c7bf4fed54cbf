"""A process's descendants by what they are called, and which of them are vLLM's engines."""

from contextlib import suppress

import psutil

_ENGINE = ("EngineCore", "multiprocessing.spawn")
"""The title of an engine's process, and what it is called without one.

The title goes where the environment began, so it cannot be set when the first variable of the environment has been
given another value since the start; and Ray passes its workers their variables in an order that differs each time.
"""


def descendants(process: psutil.Process, *named: str) -> list[psutil.Process]:
    """Those that run now, however deep below, whose title or command line contains one of these."""
    return [child for child in process.children(recursive=True) if any(name in _called(child) for name in named)]


def engines_under(process: psutil.Process) -> set[psutil.Process]:
    """The engines' processes among a process's descendants."""
    return set(descendants(process, *_ENGINE))


def _called(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join([process.name(), *process.cmdline()])
    return ""
