"""Waiting for a work thread: until what was there at the call is done, unless it is closed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from structlog.testing import capture_logs

from protocol.errors import Unavailable
from retriever.settings import Pace
from retriever.work_thread import WorkThread

QUICK = Pace(retry_first_s=0.001, retry_max_s=0.001)


@contextmanager
def working(do_next: Callable[[], bool]) -> Iterator[WorkThread]:
    thread = WorkThread("test", do_next, QUICK, lambda: None, threading.Event())
    thread.start()
    try:
        yield thread
    finally:
        thread.close()


def test_all_that_is_there_is_done_when_waiting_ends():
    left = []
    done = []

    def do_next() -> bool:
        if not left:
            return False
        done.append(left.pop())
        return True

    with working(do_next) as thread:
        for number in range(100):
            left.append(number)
            thread.wait()
            assert done[-1] == number


def test_a_call_that_has_looked_for_work_before_does_not_end_the_waiting():
    looked, may_return = threading.Event(), threading.Event()
    left, done = [], []

    def do_next() -> bool:
        found = left.pop() if left else None
        looked.set()
        may_return.wait()
        if found is not None:
            done.append(found)
        return found is not None

    with working(do_next) as thread, ThreadPoolExecutor(1) as pool:
        looked.wait()
        left.append("late")
        waiting = pool.submit(thread.wait)
        may_return.set()
        waiting.result(20)
        assert done == ["late"]


def test_failures_are_retried_before_waiting_ends():
    failures = [Unavailable("busy"), ValueError("odd")]
    done = []

    def do_next() -> bool:
        if failures:
            raise failures.pop()
        done.append(1)
        return False

    with working(do_next) as thread:
        thread.wait()
        assert failures == []
        assert done


def test_closing_ends_the_waiting():
    reached, may_return = threading.Event(), threading.Event()

    def do_next() -> bool:
        reached.set()
        may_return.wait()
        return True

    with ThreadPoolExecutor(2) as pool, working(do_next) as thread:
        reached.wait()
        waiting = pool.submit(thread.wait)
        closing = pool.submit(thread.close)
        waiting.result(20)
        may_return.set()
        closing.result(20)


def test_a_call_that_fails_because_of_the_stop_is_not_logged():
    reached, closed = threading.Event(), threading.Event()

    def do_next() -> bool:
        reached.set()
        closed.wait()
        raise OSError("closed")

    with capture_logs() as logs, working(do_next) as thread:
        reached.wait()
        thread.stop()
        closed.set()
        thread.close()
    assert logs == []


def test_closing_is_not_lost_if_it_comes_just_before_the_thread_waits():
    class ClosingBeforeItIsCleared(threading.Event):
        def clear(self) -> None:
            pool.submit(thread.close)
            self.wait()
            super().clear()

    with ThreadPoolExecutor(1) as pool:
        thread = WorkThread("test", lambda: False, QUICK, lambda: None, ClosingBeforeItIsCleared())
        thread.start()
        thread._thread.join(20)
        assert not thread._thread.is_alive()
