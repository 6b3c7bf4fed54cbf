"""A rerank endpoint on 127.0.0.1 for tests, in both shapes."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from varied import varied

from retriever.settings import EndpointRerankerSettings

Body = dict[str, Any]


def number_in(text: str) -> float:
    """The score that the server gives a text: the last number in it, or 0."""
    return float((re.findall(r"\d+", text) or ["0"])[-1])


def cohere(body: Body) -> Body:
    ranks = [{"index": at, "relevance_score": number_in(text)} for at, text in enumerate(body["documents"])]
    ranks.sort(key=lambda rank: -rank["relevance_score"])
    return {"id": "r", "results": ranks[: body["top_n"]], "meta": {}}


def tei(body: Body) -> list[Body]:
    ranks = [{"index": at, "score": number_in(text)} for at, text in enumerate(body["texts"])]
    return sorted(ranks, key=lambda rank: -rank["score"])


class RerankServer:
    """Answers with what ``reply`` makes of a body, as JSON or as it is, with ``status``.

    It holds requests back while ``released`` is cleared, and sends its replies byte by byte while ``drips`` is set.
    """

    def __init__(self, reply: Callable[[Body], Any], port: int = 0) -> None:
        self.reply = reply
        self.status = 200
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        self.drips = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                server.headers.append(dict(self.headers))
                server.released.wait(30)
                answer = server.reply(body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                try:
                    for at in range(0, len(content), 1 if server.drips else max(1, len(content))):
                        self.wfile.write(content[at : at + 1] if server.drips else content)
                        if server.drips and server.dripping.wait(0.02):
                            return
                except OSError:
                    # The client has left.
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.dripping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/rerank"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def settings(self, **changes: Any) -> EndpointRerankerSettings:
        usual = {"url": self.url, "shape": "cohere", "model": "m", "timeout_s": 20}
        return varied(EndpointRerankerSettings, **{**usual, **changes})

    def close(self) -> None:
        self.released.set()
        self.dripping.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(reply: Callable[[Body], Any] = cohere, port: int = 0) -> Iterator[RerankServer]:
    server = RerankServer(reply, port)
    try:
        yield server
    finally:
        server.close()
