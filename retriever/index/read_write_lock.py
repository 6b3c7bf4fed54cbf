"""A lock for many readers or one writer."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class ReadWriteLock:
    """Many readers or one writer hold it. A waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False
        self._reading = _Reading(self)

    def reading(self) -> AbstractContextManager[None]:
        """Hold the lock together with other readers."""
        return self._reading

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class _Reading(AbstractContextManager[None]):
    """The context manager of all readers. One shared object is cheaper than a generator per search stage."""

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        lock = self._lock
        with lock._mutex:
            while lock._writing or lock._writers_waiting:
                lock._changed.wait()
            lock._readers += 1

    def __exit__(self, *_: object) -> None:
        lock = self._lock
        with lock._mutex:
            lock._readers -= 1
            if lock._writers_waiting and not lock._readers:
                lock._changed.notify_all()
