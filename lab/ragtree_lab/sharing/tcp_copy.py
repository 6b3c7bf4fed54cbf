"""A plain copy of bytes between two processes over TCP: what a read at a peer is compared with."""

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from time import perf_counter

import numpy as np

_HOST = "127.0.0.1"
_ASKED = 8
"""Bytes of a request: how many bytes to send."""


class TcpCopy:
    """A connection to a process that sends as many bytes as it is asked for. Create it with ``opened``."""

    def __init__(self, connected: socket.socket, most: int) -> None:
        self._connected = connected
        # Touched once, so that no copy pays for new pages.
        self._target = np.ones(most, np.uint8)

    @classmethod
    @contextmanager
    def opened(cls, most: int) -> "Iterator[TcpCopy]":
        """Connect to a new process that holds ``most`` bytes."""
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        sender = spawning.Process(target=_send, args=(theirs, most), daemon=True)
        sender.start()
        try:
            with socket.create_connection((_HOST, ours.recv())) as connected:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield cls(connected, most)
        finally:
            sender.terminate()
            sender.join()

    def rate(self, size: int) -> float:
        """Bytes a second of a copy of ``size`` bytes, from asking for it to its last byte."""
        began = perf_counter()
        self._connected.sendall(size.to_bytes(_ASKED, "little"))
        left = self._target.data[:size]
        while left:
            left = left[self._connected.recv_into(left) :]
        return size / (perf_counter() - began)


def _send(port: Connection, most: int) -> None:
    memory = np.ones(most, np.uint8).data
    with socket.create_server((_HOST, 0)) as listening:
        port.send(listening.getsockname()[1])
        connected, _ = listening.accept()
    with connected, suppress(ConnectionError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while asked := connected.recv(_ASKED, socket.MSG_WAITALL):
            connected.sendall(memory[: int.from_bytes(asked, "little")])
