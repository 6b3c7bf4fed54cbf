"""Streams over sockets that move a few bytes at a time."""

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_loads import soon
from xxhash import xxh3_64_intdigest

from generator.peers.stream import Stream
from generator.peers.wire import HEAD_BYTES, OUTCOMES, PeerUnreachable, Reason, ReplyEnd, Status, framed


class ShortSocket(socket.socket):
    """A socket that sends and receives at most ``most`` bytes a call."""

    most = 7

    def sendmsg(self, buffers: Iterable[Any], *args: Any) -> int:
        return super().sendmsg(_within(buffers, self.most), *args)

    def recvmsg_into(self, buffers: Iterable[Any], *args: Any) -> Any:
        return super().recvmsg_into(_within(buffers, self.most), *args)


def _within(buffers: Iterable[memoryview], most: int) -> list[memoryview]:
    found = list(buffers)
    assert len(found) <= os.sysconf("SC_IOV_MAX")
    some = []
    for buffer in found:
        some.append(buffer[:most])
        most -= len(some[-1])
    return some


@pytest.fixture
def ends() -> Iterator[tuple[Stream, Stream]]:
    """The two ends of a connection."""
    mine, theirs = connected()
    yield Stream(mine, "theirs", 0.3), Stream(theirs, "mine")
    mine.close()
    theirs.close()


def connected(kind: type[socket.socket] = socket.socket) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return kind(fileno=mine.detach()), kind(fileno=theirs.detach())


sizes = st.lists(st.integers(0, 40), min_size=1, max_size=20)


@given(sent=sizes, parts=sizes, most=st.integers(1, 100))
@settings(deadline=None)
def test_buffers_arrive_whatever_a_call_moves(sent: list[int], parts: list[int], most: int) -> None:
    total = sum(sent)
    data = np.random.default_rng(total).integers(0, 256, total, dtype=np.uint8).tobytes()
    ends = np.cumsum([0, *sent]).tolist()
    buffers = [data[begin:end] for begin, end in pairwise(ends)]
    parts = [*parts, max(0, total - sum(parts) - HEAD_BYTES)]
    page, head = [np.zeros(size, np.uint8) for size in parts], bytearray(HEAD_BYTES)
    mine, theirs = connected(ShortSocket)
    mine.most = theirs.most = most  # type: ignore[attr-defined]
    with mine, theirs:
        surplus = bytes(max(0, sum(parts) + HEAD_BYTES - total))
        Stream(mine, "theirs").send([*buffers, surplus], soon())
        checksum = Stream(theirs, "mine").receive_page(page, head, soon())
    received = b"".join(part.tobytes() for part in page)
    assert received + head == data + surplus
    assert checksum == xxh3_64_intdigest(received)


def test_more_buffers_arrive_than_one_call_takes(ends: tuple[Stream, Stream]) -> None:
    count = os.sysconf("SC_IOV_MAX") * 2 + 1
    ends[0].send([bytes([index % 256]) for index in range(count)], soon())
    parts, head = [np.zeros(1, np.uint8) for _ in range(count - HEAD_BYTES)], bytearray(HEAD_BYTES)
    ends[1].receive_page(parts, head, soon())
    assert b"".join(part.tobytes() for part in parts) + head == bytes(index % 256 for index in range(count))


def test_a_peer_that_takes_nothing_is_a_timeout(ends: tuple[Stream, Stream]) -> None:
    began = time.monotonic()
    with pytest.raises(PeerUnreachable) as failed:
        ends[0].send([bytes(64 << 20)], soon())
    assert failed.value.reason is Reason.TIMEOUT
    assert 0.2 < time.monotonic() - began < 10


def test_a_peer_that_is_gone_cuts(ends: tuple[Stream, Stream]) -> None:
    ends[1].close()
    with pytest.raises(PeerUnreachable) as unheard:
        ends[0].receive(bytearray(1), soon())
    with pytest.raises(PeerUnreachable) as unsent:
        ends[0].send([bytes(64 << 20)], soon())
    assert (unheard.value.reason, unsent.value.reason) == (Reason.CUT, Reason.CUT)


def test_ending_a_stream_wakes_the_thread_that_waits(ends: tuple[Stream, Stream]) -> None:
    failures: list[Reason] = []

    def wait() -> None:
        try:
            ends[1].receive(bytearray(1), soon())
        except PeerUnreachable as error:
            failures.append(error.reason)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ends[1].end()
    waiting.join(10)
    assert failures == [Reason.CUT]
    ends[1].close()
    ends[1].end()
    ends[1].close()
    with pytest.raises(PeerUnreachable) as failed:
        ends[1].send([b"."], soon())
    assert failed.value.reason is Reason.CUT


def test_a_message_has_a_greatest_length(ends: tuple[Stream, Stream]) -> None:
    outcome = ReplyEnd(Status.OK, detail="x" * 50)
    length = len(framed(outcome)) - 4
    for most in (length, length - 1):
        ends[0].send_message(outcome, soon())
        if most == length:
            assert ends[1].receive_message(OUTCOMES, soon(), most) == outcome
        else:
            with pytest.raises(PeerUnreachable, match=f"{length} bytes, but at most {most}") as failed:
                ends[1].receive_message(OUTCOMES, soon(), most)
            assert failed.value.reason is Reason.INCOMPATIBLE
    with pytest.raises(ValueError, match="exceeds the limit"):
        ends[0].send_message(ReplyEnd(Status.OK, detail="x" * (1 << 20)), soon())


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x81\xa6status\xa1\xff", b"\x81\xa1x" + b"\x91" * 5000, b"\x80", b"\x81\xa6status\xa3new"]
)
def test_what_is_no_message_breaks_the_protocol(ends: tuple[Stream, Stream], body: bytes) -> None:
    ends[0].send([len(body).to_bytes(4, "big"), body], soon())
    with pytest.raises(PeerUnreachable) as failed:
        ends[1].receive_message(OUTCOMES, soon())
    assert failed.value.reason is Reason.INCOMPATIBLE
