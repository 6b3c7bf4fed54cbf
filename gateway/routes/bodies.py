"""Validation of bodies that a route reads itself because it accepts several formats."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

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
