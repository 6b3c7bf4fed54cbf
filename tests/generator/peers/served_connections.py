"""The connections that the servers of this process serve."""

import threading
import time
from collections.abc import Callable

from peer_loads import soon


def wait_for(condition: Callable[[], bool]) -> None:
    end = soon()
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def served_connections() -> int:
    return sum(thread.name == "kv-peer" for thread in threading.enumerate())
