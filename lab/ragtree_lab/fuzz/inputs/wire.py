"""Connections that speak HTTP badly: half heads, silent bodies, wrong lengths, pipelines, odd chunks."""

import json

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.requests import Caller, Input, Piece, Request, call

_BODY = json.dumps({"query": "x", "max_tokens": 1, "collection": "fuzzed"}).encode()
_HEADS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/0.9\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET  /healthz  HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://other/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"TRACE /query HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: x\n\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n Folded: yes\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nH\x00st: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /query HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"POST /query HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"Content-Length: 0\r\n\r\n",
    b"X" * 70_000,
    b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
]
_LENGTHS = [
    b"-1",
    b"+5",
    b"0x10",
    b"1e3",
    b"5, 5",
    b"5, 6",
    b"",
    b" ",
    b"99999999999999999999",
    b"4294967296",
    b"5\r\nContent-Length: 6",
    "٣".encode(),
]
_CHUNKS = [
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\nx\r\n0\r\n\r\n",
    b"5;ext=" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"2\r\nabcdef\r\n0\r\n\r\n",
    b"1\r\n{\r\n" * 2000,
    b"zz\r\n",
    b"0\r\nTrailer: x\r\nContent-Length: 5\r\n\r\n",
    b"00000000000000000001\r\n{\r\n0\r\n\r\n",
    b"\r\n\r\n",
]


def _rude(*pieces: Piece, leaves_s: float | None = None, resets: bool = False) -> Input:
    return Input(requests=(Request(pieces=pieces, rude=True, leaves_s=leaves_s, resets=resets),))


def _head(caller: Caller, *lines: bytes, path: str = "/query") -> bytes:
    key = f"Authorization: Bearer {caller.placeholder}\r\n".encode() if caller is not Caller.NOBODY else b""
    head = f"POST {path} HTTP/1.1\r\nHost: fuzz\r\nContent-Type: application/json\r\n".encode() + key
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


_CALLERS = st.sampled_from([Caller.STRANGER, Caller.NOBODY])
_PATHS = st.sampled_from(
    ["/query", "/v1/collections/fuzzed/documents/raw", "/v1/collections/fuzzed/documents:batch", "/v1/chat/completions"]
)


def _cut(caller: Caller, share: float, pause_s: float, resets: bool) -> Input:
    content = call("POST", "/query", _BODY, caller=caller, headers={"Content-Type": "application/json"})
    begin = content[: int(len(content) * share)]
    return _rude(Piece(begin), leaves_s=pause_s, resets=resets)


def _dripping(caller: Caller, size: int, pause_s: float) -> Input:
    content = call("POST", "/query", _BODY, caller=caller, headers={"Content-Type": "application/json"})
    parts = [content[begin : begin + size] for begin in range(0, len(content), size)]
    return _rude(*(Piece(part, pause_s) for part in parts))


def _silent(caller: Caller, path: str, declared: int, sent: int) -> Input:
    return _rude(Piece(_head(caller, b"Content-Length: %d" % declared, path=path) + b"{" * sent))


def _crowd(caller: Caller, count: int, sent: int) -> Input:
    """Many connections at once that each hold a part of a body."""
    piece = Piece(_head(caller, b"Content-Length: %d" % (sent + 1)) + b" " * sent)
    return Input(requests=(Request(pieces=(piece,), rude=True, leaves_s=2.0),) * count)


def _pipelined(caller: Caller, count: int, gap: bytes) -> Input:
    request = _head(caller, b"Content-Length: %d" % len(_BODY)) + _BODY
    return _rude(Piece((request + gap) * count))


def connections() -> SearchStrategy[Input]:
    """Every kind of bad connection. Most are from callers without a key."""
    return st.one_of(
        st.builds(lambda head: _rude(Piece(head)), st.sampled_from(_HEADS)),
        st.builds(lambda garbage: _rude(Piece(garbage)), st.binary(min_size=1, max_size=400)),
        st.builds(
            lambda caller, length, path: _rude(Piece(_head(caller, b"Content-Length: " + length, path=path) + _BODY)),
            _CALLERS,
            st.sampled_from(_LENGTHS),
            _PATHS,
        ),
        st.builds(
            lambda caller, chunks, path: _rude(Piece(_head(caller, b"Transfer-Encoding: chunked", path=path) + chunks)),
            _CALLERS,
            st.sampled_from(_CHUNKS),
            _PATHS,
        ),
        st.builds(
            lambda caller, coding: _rude(
                Piece(_head(caller, b"Transfer-Encoding: " + coding, b"Content-Length: 3") + b"0\r\n\r\n")
            ),
            _CALLERS,
            st.sampled_from([b"chunked", b"identity", b"gzip, chunked", b"xchunked", b"chunked, chunked"]),
        ),
        st.builds(_cut, _CALLERS, st.floats(0, 1), st.floats(0, 1.5), st.booleans()),
        st.builds(_dripping, _CALLERS, st.sampled_from([1, 7, 40]), st.sampled_from([0.0, 0.001, 0.01])),
        st.builds(_silent, _CALLERS, _PATHS, st.sampled_from([10, 200_000, 2**31]), st.sampled_from([0, 1, 9])),
        st.builds(_crowd, _CALLERS, st.sampled_from([10, 60]), st.sampled_from([1, 2000])),
        st.builds(_pipelined, _CALLERS, st.sampled_from([2, 5]), st.sampled_from([b"", b"\r\n", b"x"])),
    )
