"""Peers that are gone, slow, cut or lying: every load ends by its deadline, with an error that says why."""

import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_peers import HANDSHAKE_BYTES, Listener, authenticated, proxy, wait_for_end
from page_target import MemoryBlocks
from peer_loads import NODE, PAGES, load, soon
from peer_nodes import FORMAT, KEY, PAGE_BYTES, InterruptedArena, content_of, write
from xxhash import xxh3_64_intdigest

from generator.peers.handshake import PeerKey, admit
from generator.peers.page_client import PeerPages
from generator.peers.page_server import PageServer
from generator.peers.stream import Stream
from generator.peers.wire import (
    HEAD_BYTES,
    REQUESTS,
    Head,
    PeerUnreachable,
    Reason,
    ReplyEnd,
    Status,
    encode_head,
    framed,
)
from generator.tiers.base import TierError
from protocol.tiers import Tier

Listen = Callable[[Listener], Listener]

FIRST_PAGE = HANDSHAKE_BYTES + HEAD_BYTES
PAGE = bytes(PAGE_BYTES)
CHECKSUM = xxh3_64_intdigest(PAGE)


def sent(pages: int) -> bytes:
    """The first pages of a reply."""
    return (encode_head(Head.PAGE, CHECKSUM) + PAGE) * pages


def reply_of(pages: int, outcome: ReplyEnd) -> bytes:
    return sent(pages) + encode_head(Head.CLOSING) + framed(outcome)


def failure_of(client: PeerPages, address: str, **options: Any) -> PeerUnreachable:
    with pytest.raises(PeerUnreachable) as failed:
        load(client, address, **options)
    assert address in str(failed.value)
    return failed.value


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_errors_of_peers_are_errors_of_tiers_and_survive_a_process() -> None:
    error = PeerUnreachable(Reason.BUSY, "10.0.0.1:80 is busy")
    assert isinstance(error, PeerUnreachable)
    assert isinstance(error, TierError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, str(again)) == (Reason.BUSY, "10.0.0.1:80 is busy")


@pytest.mark.parametrize("address", ["nowhere", "host.invalid:80", "127.0.0.1:0"])
def test_an_address_that_leads_nowhere_is_refused(client: PeerPages, address: str) -> None:
    assert failure_of(client, address).reason is Reason.REFUSED


def test_a_peer_that_is_not_there_refuses(client: PeerPages) -> None:
    assert failure_of(client, free_address()).reason is Reason.REFUSED


@pytest.mark.parametrize("options", [{"deadline": 0.3}, {"timeout_s": 0.3}])
def test_a_peer_that_says_nothing_times_out(
    connect: Callable[..., PeerPages], listen: Listen, options: dict[str, float]
) -> None:
    listener = listen(Listener(wait_for_end))
    assert_timeout(connect, listener, options)


@pytest.mark.parametrize("options", [{"deadline": 0.3}, {"timeout_s": 0.3}])
@pytest.mark.parametrize("part", [b"", sent(1)[:1], sent(1)[:100], sent(3)])
def test_a_peer_that_stops_in_a_reply_times_out(
    connect: Callable[..., PeerPages], listen: Listen, options: dict[str, float], part: bytes
) -> None:
    listener = listen(Listener(authenticated(lambda stream: stream.send([part], soon()))))
    assert_timeout(connect, listener, options)


def assert_timeout(connect: Callable[..., PeerPages], listener: Listener, options: dict[str, float]) -> None:
    client = connect(timeout_s=options.get("timeout_s", 30.0))
    began = time.monotonic()
    failure = failure_of(client, listener.address, deadline=began + options.get("deadline", 30.0))
    assert failure.reason is Reason.TIMEOUT
    assert 0.2 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("trickled", "timeout_s", "deadline_s"),
    [(0, 30, 0.5), (HANDSHAKE_BYTES, 30, 0.5), (FIRST_PAGE + 10, 30, 0.5), (0, 0.5, 30)],
)
def test_a_peer_that_trickles_times_out(
    arena: InterruptedArena,
    server: PageServer,
    connect: Callable[..., PeerPages],
    listen: Listen,
    trickled: int,
    timeout_s: float,
    deadline_s: float,
) -> None:
    write(arena, NODE, PAGES)
    stop = threading.Event()

    def trickle(at: int, piece: bytes) -> bytes:
        if at >= trickled:
            stop.wait(0.05)
        return piece

    slow = listen(proxy(server.address, trickle, piece_bytes=1))
    began = time.monotonic()
    try:
        failure = failure_of(connect(timeout_s=timeout_s), slow.address, deadline=began + deadline_s)
    finally:
        stop.set()
    assert failure.reason is Reason.TIMEOUT
    assert time.monotonic() - began < 5


def test_a_deadline_that_has_passed_is_a_timeout(
    arena: InterruptedArena, server: PageServer, client: PeerPages
) -> None:
    write(arena, NODE, PAGES)
    past = time.monotonic() - 1
    assert failure_of(client, server.address, deadline=past).reason is Reason.TIMEOUT
    load(client, server.address)
    assert failure_of(client, server.address, deadline=past).reason is Reason.TIMEOUT


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize(
    "after", [0, 3, HANDSHAKE_BYTES, FIRST_PAGE - 1, FIRST_PAGE, FIRST_PAGE + PAGE_BYTES // 2, FIRST_PAGE + PAGE_BYTES]
)
def test_a_peer_that_is_cut_is_never_believed(
    arena: InterruptedArena, server: PageServer, client: PeerPages, listen: Listen, after: int, reachable: bool
) -> None:
    write(arena, NODE, PAGES)
    cut = listen(proxy(server.address, lambda at, piece: piece if at < after else None, piece_bytes=1))
    assert failure_of(client, cut.address, reachable=reachable).reason is Reason.CUT


def test_a_peer_that_is_cut_before_the_last_byte_is_never_believed(
    arena: InterruptedArena, server: PageServer, client: PeerPages, listen: Listen
) -> None:
    write(arena, NODE, PAGES)
    last = HANDSHAKE_BYTES + len(reply_of(3, ReplyEnd(Status.OK))) - 1
    cut = listen(proxy(server.address, lambda at, piece: piece if at < last else None, piece_bytes=1))
    assert failure_of(client, cut.address).reason is Reason.CUT
    whole = listen(proxy(server.address, lambda at, piece: piece if at <= last else None, piece_bytes=1))
    assert (load(client, whole.address) == content_of(NODE)).all()


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_bit_that_flips_on_the_way_fails_the_read(
    arena: InterruptedArena, server: PageServer, client: PeerPages, listen: Listen, page: int, reachable: bool
) -> None:
    write(arena, NODE, PAGES)
    flipped = FIRST_PAGE + page * (HEAD_BYTES + PAGE_BYTES) + 4321

    def flip(at: int, piece: bytes) -> bytes:
        spoilt = bytearray(piece)
        if at <= flipped < at + len(piece):
            spoilt[flipped - at] ^= 16
        return bytes(spoilt)

    lying = listen(proxy(server.address, flip))
    for _ in range(2):
        with pytest.raises(PeerUnreachable) as failed:
            load(client, lying.address, reachable=reachable)
        assert failed.value.reason is Reason.DAMAGED
    assert lying.connections == 2, "a connection was used again after an error"
    assert (load(client, server.address) == content_of(NODE)).all()


@pytest.mark.parametrize(
    "reply",
    [
        b"\0" * HEAD_BYTES,
        sent(1) + b"\3" * HEAD_BYTES,
        reply_of(2, ReplyEnd(Status.OK)),
        reply_of(4, ReplyEnd(Status.OK)),
        sent(3) + encode_head(Head.PAGE) + framed(ReplyEnd(Status.OK)),
        sent(3) + encode_head(Head.CLOSING) + b"\xff" * 4,
        sent(3) + encode_head(Head.CLOSING) + b"\0\0\0\1\xc0",
    ],
)
def test_a_peer_that_breaks_the_protocol_is_incompatible(client: PeerPages, listen: Listen, reply: bytes) -> None:
    listener = listen(Listener(authenticated(lambda stream: stream.send([reply], soon()))))
    for _ in range(2):
        assert failure_of(client, listener.address).reason is Reason.INCOMPATIBLE
    assert listener.connections == 2


def test_an_error_of_the_target_ends_the_connection(
    arena: InterruptedArena, server: PageServer, client: PeerPages
) -> None:
    class Refusing(MemoryBlocks):
        def in_place(self, block: int) -> Any:
            raise OSError("the block is gone")

    write(arena, NODE, PAGES)
    reading = client.reading(server.address, NODE.key, Tier.HOST, PAGES, soon())
    with reading as reader, pytest.raises(OSError, match="the block is gone"):
        reader.load(0, range(3), Refusing(3, (PAGE_BYTES,)))
    assert (load(client, server.address) == content_of(NODE)).all()


def test_a_connection_serves_many_reads(
    arena: InterruptedArena, server: PageServer, client: PeerPages, listen: Listen
) -> None:
    write(arena, NODE, PAGES)
    counting = listen(proxy(server.address, lambda _, piece: piece))
    for _ in range(3):
        assert (load(client, counting.address) == content_of(NODE)).all()
    assert counting.connections == 1


def test_kept_connections_are_bounded(
    arena: InterruptedArena, server: PageServer, connect: Callable[..., PeerPages], listen: Listen
) -> None:
    write(arena, NODE, PAGES)
    client = connect(most_idle=1)
    first, second = (listen(proxy(server.address, lambda _, piece: piece)) for _ in range(2))
    for address in (first.address, second.address, second.address, first.address):
        load(client, address)
    assert (first.connections, second.connections) == (2, 1)


def test_a_load_survives_a_restart_of_the_server(
    arena: InterruptedArena, serve: Callable[..., PageServer], client: PeerPages
) -> None:
    write(arena, NODE, PAGES)
    server = serve()
    load(client, server.address)
    server.close()
    again = serve(port=int(server.address.rpartition(":")[2]))
    assert again.address == server.address
    assert (load(client, again.address) == content_of(NODE)).all()
    again.close()
    assert failure_of(client, again.address).reason is Reason.REFUSED


def test_a_request_is_repeated_once_and_only_on_a_kept_connection(client: PeerPages, listen: Listen) -> None:
    answers = [reply_of(3, ReplyEnd(Status.OK))]

    def answer_once(stream: Stream) -> None:
        if answers:
            stream.send([answers.pop()], soon())
            stream.receive_message(REQUESTS, soon())
        stream.end()

    listener = listen(Listener(authenticated(answer_once)))
    assert not load(client, listener.address).any()
    assert failure_of(client, listener.address).reason is Reason.CUT
    assert listener.connections == 2
    assert failure_of(client, listener.address).reason is Reason.CUT
    assert listener.connections == 3


def test_closing_a_client_ends_its_reads(client: PeerPages, listen: Listen) -> None:
    asked = threading.Event()
    listener = listen(Listener(authenticated(lambda _: asked.set())))
    failures: list[PeerUnreachable] = []
    reading = threading.Thread(target=lambda: failures.append(failure_of(client, listener.address)))
    reading.start()
    assert asked.wait(30)
    began = time.monotonic()
    client.close()
    client.close()
    reading.join()
    assert time.monotonic() - began < 5
    assert failures[0].reason is Reason.CUT
    assert failure_of(client, listener.address).reason is Reason.CUT
    assert listener.connections == 1


def test_a_client_that_is_closed_while_it_connects_keeps_no_connection(client: PeerPages, listen: Listen) -> None:
    ended = threading.Event()

    def serve(connected: socket.socket) -> None:
        client.close()
        admit(Stream(connected, "client"), PeerKey(KEY), FORMAT, lambda: True, soon())
        wait_for_end(connected)
        ended.set()

    listener = listen(Listener(serve))
    assert failure_of(client, listener.address).reason is Reason.CUT
    assert ended.wait(30)
