"""Which connections are kept, and which are closed."""

import socket
from collections.abc import Iterator

import pytest
from peer_loads import soon

from generator.peers.connections import ConnectionPool
from generator.peers.stream import Stream
from generator.peers.wire import HEAD_BYTES, PeerUnreachable, Reason

HEAD = b"h" * HEAD_BYTES


class Connections:
    """Opens connections to a socket that answers each request with the heads that it has been given in advance."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.mine: list[socket.socket] = []
        self.theirs: list[socket.socket] = []

    def connect(self, address: str, _: float) -> Stream:
        self.mine.append(socket.create_connection(self._listener.getsockname()))
        self.theirs.append(self._listener.accept()[0])
        self.theirs[-1].sendall(HEAD)
        return Stream(self.mine[-1], address, 0.3)

    @property
    def open(self) -> list[bool]:
        """Whether each connection is open, in the order in which they were opened."""
        return [connection.fileno() >= 0 for connection in self.mine]

    def close(self) -> None:
        for connection in (self._listener, *self.mine, *self.theirs):
            connection.close()


@pytest.fixture
def connections() -> Iterator[Connections]:
    connections = Connections()
    yield connections
    connections.close()


@pytest.fixture
def pool(connections: Connections) -> ConnectionPool:
    return ConnectionPool(connections.connect, 2)


def ask(pool: ConnectionPool, address: str = "a") -> None:
    with pool.asking(address, b"?", soon()) as reply:
        assert reply.head == HEAD


def ask_at_once(pool: ConnectionPool, count: int, address: str = "a") -> None:
    """Several requests, each of which begins before the others end."""
    if count:
        with pool.asking(address, b"?", soon()):
            ask_at_once(pool, count - 1, address)


def test_a_connection_is_kept_for_the_next_request_to_its_address(
    connections: Connections, pool: ConnectionPool
) -> None:
    ask(pool, "a")
    connections.theirs[0].sendall(HEAD)
    ask(pool, "b")
    ask(pool, "a")
    assert connections.open == [True, True]


def test_a_connection_belongs_to_one_request_at_a_time(connections: Connections, pool: ConnectionPool) -> None:
    ask_at_once(pool, 2)
    assert connections.open == [True, True]


def test_the_connections_that_were_idle_for_longest_are_closed(connections: Connections, pool: ConnectionPool) -> None:
    for address in ("a", "b", "c"):
        ask(pool, address)
    assert connections.open == [False, True, True]


def test_a_connection_is_closed_if_its_reply_is_not_received(connections: Connections, pool: ConnectionPool) -> None:
    with pytest.raises(ValueError, match="not received"), pool.asking("a", b"?", soon()):
        raise ValueError("not received")
    assert connections.open == [False]


def test_the_kept_connections_to_a_peer_that_has_cut_one_are_closed(
    connections: Connections, pool: ConnectionPool
) -> None:
    ask_at_once(pool, 2)
    connections.theirs[0].close()
    ask(pool)
    assert connections.open == [False, False, True]


def test_a_request_on_a_kept_connection_that_times_out_is_not_repeated(
    connections: Connections, pool: ConnectionPool
) -> None:
    ask_at_once(pool, 2)
    with pytest.raises(PeerUnreachable) as failed:
        ask(pool)
    assert failed.value.reason is Reason.TIMEOUT
    assert connections.open == [False, False]


def test_a_request_on_a_new_connection_is_not_repeated(connections: Connections, pool: ConnectionPool) -> None:
    connect = connections.connect

    def connect_and_cut(address: str, deadline: float) -> Stream:
        stream = connect(address, deadline)
        stream.end()
        return stream

    with pytest.raises(PeerUnreachable) as failed:
        ask(ConnectionPool(connect_and_cut, 2))
    assert failed.value.reason is Reason.CUT
    assert connections.open == [False]


def test_closing_closes_what_is_kept_and_what_is_given_back_later(
    connections: Connections, pool: ConnectionPool
) -> None:
    ask_at_once(pool, 2)
    connections.theirs[0].sendall(HEAD)
    with pool.asking("a", b"?", soon()):
        pool.close()
        assert connections.open == [True, False]
    assert connections.open == [False, False]
    with pytest.raises(PeerUnreachable) as failed:
        ask(pool)
    assert failed.value.reason is Reason.CUT
    assert len(connections.mine) == 2
