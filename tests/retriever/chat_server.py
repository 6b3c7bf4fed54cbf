"""An OpenAI-compatible chat endpoint on 127.0.0.1 for tests of the graph."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from varied import varied

from retriever.settings import LlmSettings

Body = dict[str, Any]


class Reply(NamedTuple):
    """What the server sends: the text of an answer, or a ``body`` in the place of a chat completion."""

    text: str | None = None
    finish_reason: str = "stop"
    status: int = 200
    body: bytes | None = None

    @property
    def content(self) -> bytes:
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": f"refused with {self.status}"}}).encode()
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()


def triplets(*facts: tuple[str, str, str]) -> str:
    """A good answer with these triplets."""
    return json.dumps({"triplets": [dict(zip(("head", "relation", "tail"), fact, strict=True)) for fact in facts]})


def passage_of(body: Body) -> str:
    """What a request asks about, without the title."""
    return body["messages"][-1]["content"].partition("Passage:\n")[2]


class ChatServer:
    """Replies with what ``reply`` makes of a body. It replies with the statuses ``failures`` first.

    It holds requests back while ``released`` is cleared, and sends spaces before its replies while ``drips`` is set.
    """

    def __init__(self, reply: Callable[[Body], Reply]) -> None:
        self.reply = reply
        self.failures: list[int] = []
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        self.asked = threading.Event()
        self.drips = False
        self._closing = threading.Event()
        self.running = self.most_running = 0
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.requests.append(body)
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    server.running += 1
                    server.most_running = max(server.most_running, server.running)
                    failure = server.failures.pop(0) if server.failures else None
                server.asked.set()
                server.released.wait(60)
                reply = Reply(status=failure) if failure else server.reply(body)
                with lock:
                    server.running -= 1
                try:
                    self.send_response(reply.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(reply.content) + (1_000_000 if server.drips else 0)))
                    self.send_header("retry-after-ms", "1")
                    self.end_headers()
                    while server.drips and not server._closing.wait(0.02):
                        self.wfile.write(b" ")
                    self.wfile.write(reply.content)
                except OSError:
                    # The client has left.
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def settings(self, **changes: Any) -> LlmSettings:
        usual = {"base_url": self.url, "model": "m", "timeout_s": 30, "max_retries": 0}
        return varied(LlmSettings, **{**usual, **changes})

    def close(self) -> None:
        self.released.set()
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def chatting(reply: Callable[[Body], Reply] | str) -> Iterator[ChatServer]:
    """A server that replies with what ``reply`` makes of a body, or with this text."""
    server = ChatServer((lambda _: Reply(reply)) if isinstance(reply, str) else reply)
    try:
        yield server
    finally:
        server.close()
