"""How an engine's processes end: with the process that started them, and without collecting garbage first.

vLLM ends its engines when it is closed. After a SIGKILL nobody does, and an engine would keep its GPU for good.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import threading
import time

_PATIENCE_S = 10.0
"""After SIGTERM, an engine has this long to end its ranks and to free its shared memory."""


def end_with_parent() -> None:
    """Watch the parent from now on. Does nothing in a process that ``multiprocessing`` has not started."""
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_without_collecting() -> None:
    """Do so when this process ends. Does nothing in a process that ``multiprocessing`` has not started."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
