"""What is wrong with the outcome of a request."""

import json
import re
from collections.abc import Iterator

from ragtree_lab.fuzz.requests import Request
from ragtree_lab.fuzz.sender import Answer, End, Outcome

ENGINE_DIED = "engine_died"
"""The code of an answer whose engine died. Its request need not be what the engine died of."""

_DEFECTS = re.compile(rb'"code":\s*"(internal_error|engine_died)"')
_ERROR_FIELDS = {"message", "type", "param", "code"}
_REFUSALS = {429, 503}
_LEAST_ERROR, _LEAST_SERVER_ERROR = 400, 500
_HEAD_S = 8.0
"""A client that was so late may have sent its request's head too late: it has to arrive within 10 s."""


def faults(request: Request, outcome: Outcome) -> Iterator[str]:
    """Yield what must not have happened, in words that are equal for equal faults."""
    for answer in outcome.answers:
        yield from _faults_of(answer)
        if not request.rude and answer.status >= _LEAST_ERROR:
            if answer.status < _LEAST_SERVER_ERROR and not _is_error(answer) and request.method != "HEAD":
                yield f"HTTP {answer.status} without the API's error body"
            if outcome.seconds > request.refused_within_s:
                yield f"a refusal (HTTP {answer.status}) took over {request.refused_within_s:g} s"
    if request.rude or request.leaves_s is not None:
        return
    if outcome.end not in (End.ANSWERED, End.CLOSED):
        yield f"the connection ended {outcome.end}" if outcome.end is not End.REFUSED else "no connection"
    elif not outcome.answers:
        if outcome.late_s < _HEAD_S:
            yield "the connection was closed without an answer"
    elif not outcome.answers[-1].whole:
        yield f"an answer (HTTP {outcome.answers[-1].status}) was cut off"


def _faults_of(answer: Answer) -> Iterator[str]:
    defect = _DEFECTS.search(answer.body)
    code = f" {defect.group(1).decode()}" if defect else ""
    if answer.status in _REFUSALS:
        if "retry-after" not in answer.headers:
            yield f"HTTP {answer.status}{code} without Retry-After"
        elif defect:
            yield f"HTTP {answer.status}{code}"
    elif answer.status >= _LEAST_SERVER_ERROR:
        yield f"HTTP {answer.status}{code}"
    elif defect and answer.headers.get("content-type", "").startswith("text/event-stream"):
        yield f"a stream that ended with{code}"


def _is_error(answer: Answer) -> bool:
    try:
        body = json.loads(answer.body)
    except ValueError:
        return False
    return isinstance(body, dict) and isinstance(body.get("error"), dict) and set(body["error"]) >= _ERROR_FIELDS
