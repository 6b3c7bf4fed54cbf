"""docs/guides/options.md says who sets each option, and names no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from services.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "options.md"
ROWS = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
NAMED = {name.rpartition(".")[2] for row in ROWS for name in re.findall(r"`([\w.*]+)`", row)}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def options(model: type[BaseModel]) -> Iterator[tuple[str, bool]]:
    """The name of each option, and whether others are below it."""
    for name, field in model.model_fields.items():
        below = list(models_in(field.annotation))
        yield name, bool(below)
        for each in below:
            yield from options(each)


def test_every_option_is_named():
    assert {name for name, above in options(Config) if not above} - NAMED == set()


def test_no_other_is_named():
    kinds = {"openai", "hashing", "cached", "cacheclip"}
    assert NAMED - {name for name, _ in options(Config)} - kinds == set()
