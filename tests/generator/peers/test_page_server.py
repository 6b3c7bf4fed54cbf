"""What a server does with strangers, idle, slow and broken clients, and how it closes."""

import errno
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from peer_loads import NODE, PAGES, load, soon
from peer_nodes import (
    FINGERPRINT,
    KEY,
    PAGE_BYTES,
    InterruptedArena,
    content_of,
    make_node,
    open_arena,
    write,
)
from served_connections import served_connections, wait_for
from structlog.testing import capture_logs

from generator.peers.connections import connect
from generator.peers.handshake import PeerKey
from generator.peers.page_client import PeerPages
from generator.peers.page_server import PageServer, ServerLimits
from generator.peers.stream import Stream
from generator.peers.wire import (
    HEAD_BYTES,
    MOST_MESSAGE_BYTES,
    OPENINGS,
    Greeting,
    PageFormat,
    PeerUnreachable,
    ReadRequest,
    Reason,
    framed,
    host_and_port,
)
from protocol.kv import Pages
from protocol.tiers import Tier

Serve = Callable[..., PageServer]
Connect = Callable[..., PeerPages]

SLOW = ServerLimits(handshake_s=300.0)


def stranger(closing: ExitStack, address: str) -> socket.socket:
    """A connection that has been greeted: the server counts it as a stranger."""
    host, port = host_and_port(address)
    connected = socket.create_connection((host, port), timeout=30)
    closing.callback(connected.close)
    assert isinstance(Stream(connected, address).receive_message(OPENINGS, soon()), Greeting)
    connected.settimeout(30)
    return connected


def peer(closing: ExitStack, address: str, page_bytes: int = PAGE_BYTES) -> Stream:
    """An authenticated connection."""
    stream = connect(PageFormat(FINGERPRINT, page_bytes, 0), PeerKey(KEY), 30, address, soon())
    closing.callback(stream.close)
    return stream


def reason_of(client: PeerPages, address: str) -> Reason:
    with pytest.raises(PeerUnreachable) as refused:
        load(client, address)
    return refused.value.reason


def is_closed(connected: socket.socket) -> bool:
    """Whether the server closes the connection, within the socket's timeout."""
    try:
        while connected.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_one_connection_too_many_is_told_that_the_server_is_busy(
    arena: InterruptedArena, serve: Serve, connect: Connect
) -> None:
    write(arena, NODE, PAGES)
    server, first, second = serve(limits=ServerLimits(peers=1)), connect(), connect()
    load(first, server.address)
    assert reason_of(second, server.address) is Reason.BUSY
    load(first, server.address)
    first.close()
    wait_for(lambda: served_connections() == 0)
    assert (load(second, server.address) == content_of(NODE)).all()


def test_strangers_take_no_places_of_peers(
    arena: InterruptedArena, serve: Serve, connect: Connect, closing: ExitStack
) -> None:
    write(arena, NODE, PAGES)
    server, known = serve(limits=SLOW._replace(peers=2, strangers=2)), connect()
    load(known, server.address)
    strangers = [stranger(closing, server.address) for _ in range(2)]
    assert reason_of(connect(), server.address) is Reason.BUSY
    assert (load(known, server.address) == content_of(NODE)).all()
    known.close()
    strangers[0].close()
    wait_for(lambda: served_connections() == 1)
    assert (load(connect(), server.address) == content_of(NODE)).all()


def test_a_stranger_has_little_time(serve: Serve, closing: ExitStack) -> None:
    server = serve(limits=ServerLimits(handshake_s=0.2))
    for sent in (b"", b"\0", framed(Greeting(1, bytes(32)))[:20]):
        connected = stranger(closing, server.address)
        connected.sendall(sent)
        assert is_closed(connected)


def test_a_stranger_that_trickles_has_no_more_time(serve: Serve, closing: ExitStack) -> None:
    server = serve(limits=ServerLimits(handshake_s=0.3))
    connected = stranger(closing, server.address)
    connected.sendall(b"\0\0\2\0")
    connected.settimeout(0.02)
    began = time.monotonic()
    answer: bytes | None = None
    while answer is None:
        try:
            connected.sendall(b".")
            answer = connected.recv(1)
        except TimeoutError:
            continue
        except ConnectionError:
            answer = b""
    assert answer == b""
    assert 0.2 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\4\1",
        b"\xff" * 64,
        b"\0\0\0\3\xc1\xc1\xc1",
        b"\0\0\0\0",
        framed(Greeting(1, bytes(32))),
        framed(ReadRequest(NODE.key, Tier.HOST, PAGES, 0, 3)),
    ],
)
def test_a_stranger_that_sends_anything_else_is_disconnected(
    arena: InterruptedArena, serve: Serve, client: PeerPages, closing: ExitStack, sent: bytes
) -> None:
    write(arena, NODE, PAGES)
    server = serve(limits=SLOW)
    connected = stranger(closing, server.address)
    with capture_logs() as logs:
        connected.sendall(sent)
        assert is_closed(connected)
        wait_for(lambda: bool(logs))
    assert [(log["log_level"], log["reason"]) for log in logs] == [("warning", "incompatible")]
    assert (load(client, server.address) == content_of(NODE)).all()


@pytest.mark.parametrize(
    "sent",
    [
        (MOST_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        framed(ReadRequest("../" + NODE.key, Tier.DISK, None, 0, 1)),
        framed(ReadRequest(NODE.key + "\n", Tier.DISK, None, 0, 1)),
        framed(ReadRequest("", Tier.DISK, None, 0, 1)),
        framed(ReadRequest(NODE.key, Tier.HOST, PAGES, -1, 1)),
        framed(ReadRequest(NODE.key, Tier.HOST, PAGES, 0, 0)),
    ],
)
def test_a_peer_that_sends_no_request_is_disconnected(
    arena: InterruptedArena, server: PageServer, client: PeerPages, closing: ExitStack, sent: bytes
) -> None:
    write(arena, NODE, PAGES)
    stream = peer(closing, server.address)
    with capture_logs() as logs:
        stream.send([sent], soon())
        with pytest.raises(PeerUnreachable) as ended:
            stream.receive(bytearray(1), soon())
        assert ended.value.reason is Reason.CUT
        wait_for(lambda: bool(logs))
    assert [(log["log_level"], log["reason"]) for log in logs] == [("warning", "incompatible")]
    assert (load(client, server.address) == content_of(NODE)).all()


def test_a_probe_of_the_port_is_not_logged(serve: Serve, closing: ExitStack) -> None:
    server = serve()
    with capture_logs() as logs:
        stranger(closing, server.address).close()
        wait_for(lambda: served_connections() == 0)
    assert logs == []


def test_a_server_goes_on_after_it_could_not_accept_a_connection(
    arena: InterruptedArena, server: PageServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(arena, NODE, PAGES)
    accept, failed = socket.socket.accept, threading.Event()

    def fail_once(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failed.is_set():
            return accept(listener)
        failed.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    with capture_logs() as logs:
        for _ in range(2):
            assert (load(connect(), server.address) == content_of(NODE)).all()
        assert failed.wait(30)
    assert [(log["log_level"], log["error"]) for log in logs] == [("warning", "too many open files")]


def test_a_defect_of_a_tier_ends_one_connection(arena: InterruptedArena, server: PageServer, client: PeerPages) -> None:
    write(arena, NODE, PAGES)

    def fail(_: int) -> None:
        raise ZeroDivisionError

    arena.interrupt = fail
    with capture_logs() as logs:
        assert reason_of(client, server.address) is Reason.CUT
        wait_for(lambda: bool(logs))
    assert [(log["log_level"], log["event"]) for log in logs] == [("error", "a peer's request failed")]
    arena.interrupt = lambda _: None
    assert (load(client, server.address) == content_of(NODE)).all()


def test_successful_requests_are_not_logged(arena: InterruptedArena, server: PageServer, connect: Connect) -> None:
    write(arena, NODE, PAGES)
    with capture_logs() as logs:
        client = connect()
        load(client, server.address)
        client.close()
        wait_for(lambda: served_connections() == 0)
    assert logs == []


def test_an_idle_connection_is_closed_and_the_next_load_succeeds(
    arena: InterruptedArena, serve: Serve, client: PeerPages
) -> None:
    write(arena, NODE, PAGES)
    server = serve(limits=ServerLimits(idle_s=0.1))
    load(client, server.address)
    with capture_logs() as logs:
        wait_for(lambda: served_connections() == 0)
    assert logs == []
    assert (load(client, server.address) == content_of(NODE)).all()


@pytest.fixture
def unread(tmp_path: Path, serve: Serve, closing: ExitStack) -> Callable[[ServerLimits], tuple[PageServer, Stream]]:
    """Starts a server of a node that no socket buffer holds, and asks for it. Nothing of the answer is read yet."""

    def ask(limits: ServerLimits) -> tuple[PageServer, Stream]:
        page_bytes, node, pages = 1 << 20, make_node(1, 48), Pages(tuple(range(48)), 1)
        (tmp_path / "large").mkdir()
        arena = open_arena(tmp_path / "large", page_bytes, 48)
        closing.callback(arena.close)
        write(arena, node, pages, page_bytes)
        server = serve(tiers={Tier.HOST: arena}, page_bytes=page_bytes, limits=limits)
        stream = peer(closing, server.address, page_bytes)
        stream.send_message(ReadRequest(node.key, Tier.HOST, pages, 0, 48), soon())
        # The answer has begun.
        stream.receive(bytearray(HEAD_BYTES), soon())
        return server, stream

    return ask


def test_a_peer_that_does_not_read_is_cut(unread: Callable[[ServerLimits], tuple[PageServer, Stream]]) -> None:
    began = time.monotonic()
    with capture_logs() as logs:
        unread(ServerLimits(stalled_s=0.2))
        wait_for(lambda: served_connections() == 0)
    assert time.monotonic() - began > 0.2
    assert [log["reason"] for log in logs] == ["timeout"]


def test_closing_ends_an_answer_under_way(unread: Callable[[ServerLimits], tuple[PageServer, Stream]]) -> None:
    server, stream = unread(ServerLimits(stalled_s=300.0))
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 5
    assert served_connections() == 0
    with pytest.raises(PeerUnreachable) as cut:
        stream.receive(bytearray(48 << 20), soon())
    assert cut.value.reason is Reason.CUT


def test_closing_ends_the_connections_of_peers_and_strangers(
    arena: InterruptedArena, serve: Serve, client: PeerPages, closing: ExitStack
) -> None:
    write(arena, NODE, PAGES)
    server = serve(limits=SLOW)
    load(client, server.address)
    connected = stranger(closing, server.address)
    assert served_connections() == 2
    began = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - began < 5
    assert served_connections() == 0
    assert is_closed(connected)
    assert reason_of(client, server.address) is Reason.REFUSED


def test_connections_come_and_go_while_the_server_closes(
    arena: InterruptedArena, serve: Serve, connect: Connect
) -> None:
    write(arena, NODE, PAGES)
    for _ in range(5):
        server, loaded = serve(), threading.Event()
        wrong: list[str] = []

        def keep_loading(
            address: str = server.address, loaded: threading.Event = loaded, wrong: list[str] = wrong
        ) -> None:
            while True:
                client = connect()
                try:
                    if (load(client, address) != content_of(NODE)).any():
                        wrong.append("bytes")
                    loaded.set()
                except PeerUnreachable as error:
                    if error.reason not in (Reason.CUT, Reason.REFUSED):
                        wrong.append(str(error))
                    return
                finally:
                    client.close()

        loading = [threading.Thread(target=keep_loading) for _ in range(3)]
        for thread in loading:
            thread.start()
        assert loaded.wait(30)
        server.close()
        for thread in loading:
            thread.join()
        assert wrong == []
        assert served_connections() == 0
