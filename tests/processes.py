"""Finds a process's descendants by name, and vLLM's engines among them."""

from contextlib import suppress

import psutil

_ENGINE = ("EngineCore", "multiprocessing.spawn")
"""The title of an engine's process, and its command line without a title.

The title overwrites the start of the environment. It cannot be set if the first variable of the environment has changed
since the start, and Ray passes variables to its workers in a random order.
"""


def descendants(process: psutil.Process, *named: str) -> list[psutil.Process]:
    """Return running descendants whose title or command line contains one of ``named``."""
    return [child for child in process.children(recursive=True) if any(name in _called(child) for name in named)]


def engines_under(process: psutil.Process) -> set[psutil.Process]:
    """Return the engines' processes among a process's descendants."""
    return set(descendants(process, *_ENGINE))


def _called(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join([process.name(), *process.cmdline()])
    return ""
