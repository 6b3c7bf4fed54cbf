"""The threads that move KV out of an engine's blocks: one for disk, one for host memory."""

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Movers:
    """Runs jobs on two threads, so that copies to host memory do not wait for disk writes.

    Jobs of one thread run in the order given. A job also waits for earlier jobs of the other thread that touch the same
    things: a node, or pages of host memory. So a job may use the room that an earlier one frees. No job waits for a
    later one, so the threads cannot block each other for good. ``enter_thread`` runs first on each thread.
    """

    def __init__(self, enter_thread: Callable[[], None]) -> None:
        self._host = ThreadPoolExecutor(1, "kv-host", initializer=enter_thread)
        self._disk = ThreadPoolExecutor(1, "kv-disk", initializer=enter_thread)
        # The last job that touches a thing. Guarded, because the threads remove what they have finished.
        self._last: dict[Hashable, Future[None]] = {}
        self._open: set[Future[None]] = set()
        # Reentrant, because a job may end before its submission has returned.
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, job: Callable[[], None], touches: Iterable[Hashable], uses_disk: bool) -> None:
        """Run a job behind earlier ones that touch any of the same things."""
        things = tuple(touches)
        with self._lock:
            earlier = {self._last[thing] for thing in things if thing in self._last}
            self._start(job, earlier, things, self._disk if uses_disk else self._host)

    def submit_alone(self, job: Callable[[], None]) -> None:
        """Run a job behind all earlier ones, and all later ones behind it."""
        with self._lock:
            alone = self._start(job, set(self._open), (), self._disk)
            self._start(_nothing, {alone}, (), self._host)

    def close(self) -> None:
        """Finish the jobs that have begun. The others are dropped."""
        self._closed = True
        for thread in (self._disk, self._host):
            thread.shutdown(wait=True)

    def _start(
        self,
        job: Callable[[], None],
        earlier: set["Future[None]"],
        things: tuple[Hashable, ...],
        thread: ThreadPoolExecutor,
    ) -> "Future[None]":
        def run() -> None:
            wait(earlier)
            if not self._closed:
                job()

        future = thread.submit(run)
        self._open.add(future)
        self._last.update(dict.fromkeys(things, future))
        future.add_done_callback(lambda done: self._forget(done, things))
        return future

    def _forget(self, done: "Future[None]", things: tuple[Hashable, ...]) -> None:
        with self._lock:
            self._open.discard(done)
            for thing in things:
                if self._last.get(thing) is done:
                    del self._last[thing]


def _nothing() -> None:
    """Do nothing: only the place in the order counts."""
