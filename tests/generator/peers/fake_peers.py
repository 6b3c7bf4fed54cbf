"""Servers that do not do as they should, and a proxy that spoils what a real one sends."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from peer_nodes import FORMAT, KEY

from generator.peers.handshake import PeerKey, admit
from generator.peers.stream import Stream
from generator.peers.wire import REQUESTS, Greeting, PeerUnreachable, Welcome, framed

HANDSHAKE_BYTES = len(framed(Greeting(1, bytes(32)))) + len(framed(Welcome(bytes(32), FORMAT)))
"""The bytes that a server sends before its first reply."""


class Listener:
    """Runs ``serve`` on a thread for each connection, and counts the connections."""

    def __init__(self, serve: Callable[[socket.socket], None], port: int = 0) -> None:
        self._serve = serve
        self._sockets = [socket.create_server(("127.0.0.1", port))]
        self._threads = [threading.Thread(target=self._accept)]
        self.address = f"127.0.0.1:{self._sockets[0].getsockname()[1]}"
        self.connections = 0
        self._threads[0].start()

    def close(self) -> None:
        for open_socket in self._sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for open_socket in self._sockets:
            open_socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._sockets[0].accept()
                self.connections += 1
                self._sockets.append(connected)
                self._threads.append(threading.Thread(target=self._run, args=(connected,)))
                self._threads[-1].start()

    def _run(self, connected: socket.socket) -> None:
        with suppress(OSError, PeerUnreachable):
            self._serve(connected)


def authenticated(act: Callable[[Stream], None]) -> Callable[[socket.socket], None]:
    """Serves a connection with ``act``, once its client has authenticated and sent a request."""

    def serve(connected: socket.socket) -> None:
        stream = Stream(connected, "client")
        admit(stream, PeerKey(KEY), FORMAT, lambda: True, float("inf"))
        stream.receive_message(REQUESTS, float("inf"))
        act(stream)
        wait_for_end(connected)

    return serve


def wait_for_end(connected: socket.socket) -> None:
    """Wait until the other side closes the connection."""
    connected.settimeout(None)
    while connected.recv(1 << 16):
        pass


def proxy(target: str, spoil: Callable[[int, bytes], bytes | None], piece_bytes: int = 1 << 16) -> Listener:
    """A proxy of the server ``target``. ``spoil`` takes a piece of what the server sends, and the piece's position.

    It returns what the client gets instead. None cuts the connection.
    """
    host, port = target.split(":")

    def serve(client: socket.socket) -> None:
        with socket.create_connection((host, int(port))) as server, ExitStack() as stack:
            forward = threading.Thread(target=_forward, args=(client, server))
            forward.start()
            stack.callback(forward.join)
            stack.callback(client.shutdown, socket.SHUT_RDWR)
            at = 0
            while piece := server.recv(piece_bytes):
                spoilt = spoil(at, piece)
                if spoilt is None:
                    return
                client.sendall(spoilt)
                at += len(piece)

    return Listener(serve)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
