"""A fake stack on plain sockets that answers queries with small frames at fixed times.

The text of a question selects the behaviour. Nothing is buffered, and every frame is a TCP segment of its own.
"""

import json
import socket
import threading
import time
from collections import Counter

RETRIEVED_S, FIRST_S, GAP_S, DELTAS = 0.15, 0.40, 0.05, 6
LAST_S = FIRST_S + GAP_S * (DELTAS - 1)
STALL_S = 1.0
LINGER_S = 1.0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(name: str, **body: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, 'query_id': 'q', **body})}\n\n".encode()


USAGE = {"prompt_tokens": 100, "completion_tokens": DELTAS, "prompt_tokens_details": {"cached_tokens": 60}}
COMPLETED = frame("query.completed", usage=USAGE)
ENDS = {
    "unended": [],
    "ends twice": [COMPLETED, COMPLETED],
    "fails": [frame("query.failed", error={"code": "engine_died"})],
    "incomplete": [frame("query.incomplete", reason="timeout")],
    "goes on": [COMPLETED, frame("output_text.delta", delta="more")],
}
REFUSALS: dict[str, tuple[str, ...]] = {
    "429": ("429 Too Many Requests", "rate_limited", "Retry-After: 2"),
    "503": ("503 Service Unavailable", "overloaded", "Retry-After: 2"),
    "bare": ("503 Service Unavailable", "not_ready"),
}


class SlowFrameServer:
    """Serves on ``url`` inside a ``with`` block. ``asked`` has the questions and their times by ``time.monotonic``.

    ``paths`` counts requests and ``headers`` collects their headers. ``gone`` counts clients that disconnected
    mid-stream, ``reused`` connections that carried a second request.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[tuple[str, float]] = []
        self.paths: Counter[str] = Counter()
        self.headers: list[str] = []
        self.gone = 0
        self.reused = 0
        self._open = True

    def __enter__(self) -> "SlowFrameServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, time.monotonic()), daemon=True).start()

    def _serve(self, connection: socket.socket, begun: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                self._answer(connection, begun)
            except OSError:
                self.gone += 1

    def _answer(self, connection: socket.socket, begun: float) -> None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += connection.recv(65536)
        head, _, body = raw.partition(b"\r\n\r\n")
        request, *headers = head.decode().split("\r\n")
        self.headers.extend(headers)
        method, path, _ = request.split()
        lengths = [int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length:")]
        while len(body) < sum(lengths):
            body += connection.recv(65536)
        self.paths[f"{method} {path}"] += 1
        if path == "/query":
            self._stream(connection, json.loads(body)["query"], begun)
        elif method == "GET":
            ready = {"status": "completed", "failed_documents": 0, "data": [{"id": "slow-frames"}]}
            self._json(connection, "200 OK", ready)
        else:
            self._json(connection, "202 Accepted", {"job_id": "job"})

    def _json(self, connection: socket.socket, status: str, body: object, *headers: str) -> None:
        raw = json.dumps(body).encode()
        head = [f"HTTP/1.1 {status}", "Connection: close", "Content-Type: application/json", *headers]
        connection.sendall("\r\n".join([*head, f"Content-Length: {len(raw)}", "", ""]).encode() + raw)

    def _stream(self, connection: socket.socket, question: str, begun: float) -> None:
        self.asked.append((question, begun))
        if question in REFUSALS:
            status, code, *headers = REFUSALS[question]
            self._json(connection, status, {"error": {"code": code}}, *headers)
            return
        if question == "stalls":
            time.sleep(STALL_S)
        chunked = question != "unchunked"
        wrap = chunk if chunked else bytes
        # sse-starlette and uvicorn together send both. A client that trusts the first finds the connection closed.
        head = ["HTTP/1.1 200 OK", "Connection: keep-alive", "Connection: close", "Content-Type: text/event-stream"]
        head += ["Transfer-Encoding: chunked"] if chunked else []
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        connection.sendall(wrap(frame("query.created")))
        _await(begun + RETRIEVED_S)
        connection.sendall(wrap(frame("retrieval.completed", results=[])) + wrap(b": ping\n\n"))
        # An empty delta is not a token.
        connection.sendall(wrap(frame("output_text.delta", delta="")))
        for number in range(DELTAS):
            whole = wrap(frame("output_text.delta", delta="né"))
            if number == 2:
                # Half of a frame comes early. It is not a token before the rest arrives.
                _await(begun + FIRST_S + GAP_S * number - GAP_S / 2)
                connection.sendall(whole[: len(whole) // 2])
                whole = whole[len(whole) // 2 :]
            _await(begun + FIRST_S + GAP_S * number)
            connection.sendall(whole)
        for end in ENDS.get(question, [COMPLETED]):
            connection.sendall(wrap(end))
        if chunked:
            connection.sendall(b"0\r\n\r\n")
            connection.settimeout(LINGER_S)
            self.reused += bool(connection.recv(1))


def _await(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
