"""Bodies of requests and replies."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

JSON_LINES = ("application/x-ndjson", "application/jsonl")
"""Media types of JSON lines."""


@contextmanager
def validating(*where: str) -> Iterator[None]:
    """Raise a ValidationError of the block as FastAPI's RequestValidationError, located at ``where``."""
    try:
        yield
    except ValidationError as error:
        problems = [
            {**problem, "loc": (*where, *problem["loc"])}
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise RequestValidationError(problems) from None


def json_response(content: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response with this content."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")
