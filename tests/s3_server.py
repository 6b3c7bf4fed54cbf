"""A server of S3's protocol in this process. A test can answer its requests in moto's place."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from generator.settings import ObjectStoreSettings
from generator.tiers.object_requests import open_store

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "the-key-id", "AWS_SECRET_ACCESS_KEY": "the-secret-key"}

Answer = Callable[[dict, Callable], Iterable[bytes] | None]
"""Takes a WSGI request and its ``start_response``. Returns the body, or None to let moto answer."""


class S3Server:
    """moto's S3, on any free port or on ``port``. ``requests`` lists methods and paths in the order of arrival."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[str] = []
        self._answer: Answer = lambda environ, start_response: None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", port, self._serve, threaded=True, request_handler=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def client(self):
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION)

    def new_bucket(self) -> str:
        name = f"bucket-{uuid4().hex}"
        self.client().create_bucket(Bucket=name)
        return name

    def open(self, bucket: str, timeout_s: float = 60.0):
        """Requests to a bucket, as the configuration opens them."""
        return open_store(
            ObjectStoreSettings(
                url=f"s3://{bucket}/some/prefix",
                endpoint=self.endpoint,
                region=REGION,
                allow_http=True,
                timeout_s=timeout_s,
            )
        )

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[list[str]]:
        """Let requests be answered by ``answer`` within the block. Yields a list of those that arrive."""
        before, self._answer = self._answer, answer
        outside, self.requests = self.requests, []
        try:
            yield self.requests
        finally:
            self._answer, self.requests = before, outside + self.requests

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, environ: dict, start_response: Callable) -> Iterable[bytes]:
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        body = self._answer(environ, start_response)
        return self._moto(environ, start_response) if body is None else body


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Log nothing."""


def failing(status: str, body: bytes = b"", methods: str = "GET HEAD PUT POST DELETE") -> Answer:
    """Answers these methods with a status."""

    def answer(environ: dict, start_response: Callable) -> list[bytes] | None:
        if environ["REQUEST_METHOD"] not in methods.split():
            return None
        start_response(status, [("Content-Length", str(len(body)))])
        return [body]

    return answer


def hanging(until: threading.Event, methods: str = "GET HEAD PUT POST DELETE", query: str = "") -> Answer:
    """Answers these methods with ``query`` in their query only when the event is set."""

    def answer(environ: dict, start_response: Callable) -> list[bytes] | None:
        if environ["REQUEST_METHOD"] in methods.split() and query in environ.get("QUERY_STRING", ""):
            until.wait(60)
        return None

    return answer
