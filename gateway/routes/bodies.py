"""Bodies that a route reads itself, because they may come in several shapes; what does not fit is reported as ever."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

JSON_LINES = ("application/x-ndjson", "application/jsonl")
"""The media types of a body that is one JSON value a line."""


@contextmanager
def blaming(*where: str) -> Iterator[None]:
    """Report what does not fit as FastAPI would, which does not read these bodies itself."""
    try:
        yield
    except ValidationError as error:
        problems = [{**problem, "loc": (*where, *problem["loc"])} for problem in error.errors(include_url=False)]
        raise RequestValidationError(problems) from None
