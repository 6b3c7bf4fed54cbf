"""How the retriever's threads share the processor: searches first, ingestion with whatever is left.

OpenMP, on which Faiss and torch run, keeps its number of threads for each calling thread.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from threadpoolctl import threadpool_limits

from protocol.errors import RagtreeError

_BACKGROUND_NICENESS = 10


def stay_single() -> None:
    """Let this thread's searches run on one core: they run beside each other instead."""
    threadpool_limits(limits=1, user_api="openmp")


def work_in_background(embed_something: Callable[[], object]) -> None:
    """Let this thread embed and index beside searches, as ``yield_to_others`` does.

    ``embed_something`` is called first: torch sets a thread's number when the thread first uses it.
    """
    with suppress(RagtreeError):
        embed_something()
    yield_to_others()


def yield_to_others() -> None:
    """Let this thread use every core, and yield each to whoever else wants it (Linux; elsewhere it only shares)."""
    threadpool_limits(limits=os.cpu_count() or 1, user_api="openmp")
    with suppress(OSError):
        # On Linux a thread has a niceness of its own, and the OpenMP threads it starts inherit it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICENESS)
