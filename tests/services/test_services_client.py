"""The command line's client retries while a part restarts, and only then."""

import json

import httpx
import pytest
import stamina

from services.client import ConnectionBroken, RequestFailed, StackClient, StackUnreachable


@pytest.fixture(autouse=True)
def without_waiting():
    with stamina.set_testing(True, attempts=3):
        yield


def client(*answers: httpx.Response | Exception) -> tuple[StackClient, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        given = answers[len(seen)]
        seen.append(request)
        if isinstance(given, Exception):
            raise given
        return given

    return StackClient("http://stack", transport=httpx.MockTransport(answer)), seen


def refusal(status: int) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "code": "c", "param": None}})


def test_client_retries_an_upload_while_a_part_restarts():
    stack, seen = client(refusal(503), httpx.ReadError("broke"), httpx.Response(202, json={"job_id": "j"}))
    assert stack.put_batch("c", b'{"id": "a"}\n') == {"job_id": "j"}
    assert [request.content for request in seen] == [b'{"id": "a"}\n'] * 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [(refusal(422), RequestFailed), (refusal(413), RequestFailed), (httpx.ConnectError("refused"), StackUnreachable)],
)
def test_client_reports_permanent_errors_at_once(answer, error):
    stack, seen = client(answer)
    with pytest.raises(error):
        stack.put_document("c", "d", b"text", "text/plain", "d.txt")
    assert len(seen) == 1


def test_client_stops_retrying_in_the_end():
    stack, seen = client(*[httpx.ReadError("broke")] * 3)
    with pytest.raises(ConnectionBroken):
        stack.job("j")
    assert len(seen) == 3


def test_readiness_of_a_failed_deployment_is_final():
    for code, final in (("deploy_failed", True), ("unavailable", False)):
        body = {"error": {"message": "why", "code": code}}
        stack, _ = client(httpx.Response(503, content=json.dumps(body)))
        assert stack.readiness() == ("why", final)
