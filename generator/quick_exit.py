"""Ends an engine's process without a last search for garbage.

Python searches all objects when it ends. In an engine these are a million, and the search takes seconds, in which vLLM
loses patience and kills the process. The operating system takes all of it back anyway.
"""

import atexit
import gc
import multiprocessing


def exit_without_collecting() -> None:
    """Do so when this process ends. Does nothing in a process that ``multiprocessing`` has not started."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
