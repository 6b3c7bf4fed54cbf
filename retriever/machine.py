"""How the retriever shares the machine: searches come first, ingestion uses the rest; large blocks go back at once.

Faiss and torch run on OpenMP, which keeps a separate thread count for each calling thread.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from threadpoolctl import threadpool_limits

from protocol.errors import RagtreeError

_BACKGROUND_NICENESS = 10

EMBEDDING_NICENESS = 15
"""Of threads that embed documents: below all other work in the background. Embedding takes every core that it gets. One
thread often prepares its next texts, and embedding would wait for it."""

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1024 * 1024


def search_on_one_core() -> None:
    """Limit this thread to one OpenMP core. Searches run in parallel with each other instead."""
    threadpool_limits(limits=1, user_api="openmp")


def warm_up_in_background(embed_something: Callable[[], object]) -> None:
    """Call ``embed_something``, then apply ``lower_priority`` to this thread.

    torch sets a thread's OpenMP count when the thread first uses it, so the limit must come after that.
    """
    with suppress(RagtreeError):
        embed_something()
    lower_priority()


def lower_priority(niceness: int = _BACKGROUND_NICENESS) -> None:
    """Let this thread use all cores at a low priority. Only Linux sets priorities for single threads."""
    threadpool_limits(limits=os.cpu_count() or 1, user_api="openmp")
    with suppress(OSError):
        # Each thread has its own niceness on Linux. The OpenMP threads that it starts inherit it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def return_large_blocks() -> None:
    """Have each block of a MiB or more mapped by itself, so that the system gets it back at once when it is freed.

    glibc raises its own threshold up to 32 MiB as such blocks are freed. Then arrays, such as those of a graph that is
    read again after each change, lie between small blocks that keep their memory: 12 readings of 39,000 statements left
    200 MiB. It applies to the whole process. Other C libraries have no threshold.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
