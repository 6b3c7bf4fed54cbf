"""Tasks in new processes, all at once."""

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from protocol.errors import InternalError

Result = TypeVar("Result")


class Report:
    """What a task tells the process that waits for it."""

    def __init__(self, port: Connection, ready: Barrier) -> None:
        self._port = port
        self._ready = ready

    def advance(self, count: int) -> None:
        """Say how much more is done."""
        self._port.send(count)

    def meet(self) -> None:
        """Wait until all tasks are here."""
        self._ready.wait()


def in_processes(tasks: Sequence[Callable[[Report], Result]], advanced: Callable[[int], None]) -> list[Result]:
    """Run each task in a process of its own, all at once; their results. ``advanced`` is told what they have done.

    Raises InternalError if a process ends early. Whatever happens, no process is left.
    """
    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Barrier(len(tasks))
    results: dict[Connection, Result] = {}
    with ExitStack() as running:
        ports: list[Connection] = []
        for task in tasks:
            ours, theirs = spawning.Pipe(duplex=False)
            process = spawning.Process(target=_run, args=(task, theirs, ready), daemon=True)
            process.start()
            # Else the end of the process would not end the pipe.
            theirs.close()
            running.callback(_end, process)
            ports.append(ours)
        while len(results) < len(ports):
            for port in wait([port for port in ports if port not in results]):
                assert isinstance(port, Connection)
                try:
                    message = port.recv()
                except EOFError as error:
                    raise InternalError("a process of the benchmark has ended before its task was done") from error
                if isinstance(message, int):
                    advanced(message)
                else:
                    (results[port],) = message
    return [results[port] for port in ports]


def _run(task: Callable[[Report], Any], port: Connection, ready: Barrier) -> None:
    port.send((task(Report(port, ready)),))


def _end(process: BaseProcess) -> None:
    process.terminate()
    process.join()
