"""A stack in miniature for tests of the fuzzer: it answers as a test says, also wrongly."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StubStack:
    """Answers every question with ``answer`` from ``sources``, and ``/broken`` with a status and an error code.

    Each word of the answer has this ``logprob``.
    """

    def __init__(self) -> None:
        self.answer = "Twelve barrels."
        self.logprob = -1.0
        self.sources = ["0"]
        self.collections = ["default"]
        self.broken, self.code = 500, "internal_error"
        self.ready = True
        self.url = ""


def _event(name, **fields):
    return f"event: {name}\ndata: {json.dumps({'type': name, 'query_id': 'q', **fields})}\n\n".encode()


def _handler(stack: StubStack):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/broken":
                self._json({"error": {"code": stack.code}}, stack.broken)
            elif self.path == "/v1/collections":
                self._json({"data": [{"name": name} for name in stack.collections]})
            elif "/documents?" in self.path:
                self._json({"data": [{"document_id": str(number)} for number in range(24)]})
            else:
                self._json({}, 200 if stack.ready else 503)

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            self.rfile.read(length)
            if self.path == "/query":
                self._stream()
            elif self.path == "/search":
                self._json({"results": []})
            else:
                self._json({"job_id": "j", "status": "completed", "failed_documents": 0}, 202)

        def _stream(self):
            found = [{"document_id": source} for source in stack.sources]
            tokens = [{"token": word, "logprob": stack.logprob} for word in stack.answer.split()]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(_event("retrieval.completed", results=found))
            self.wfile.write(_event("output_text.delta", delta=stack.answer, logprobs=tokens))
            self.wfile.write(_event("query.completed", usage={}))

        def _json(self, body, status=200):
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Say nothing."""

    return Handler


@contextmanager
def stub_stack() -> Iterator[StubStack]:
    """A stub that listens on this machine."""
    stack = StubStack()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(stack)) as server:
        stack.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield stack
        server.shutdown()
