"""Tells which environment variables are options of RAGTree's configuration."""

from collections.abc import Iterator
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel

from services.config import Config


def is_option(variable: str) -> bool:
    """Return whether the configuration reads this variable."""
    name = variable.removeprefix("RAGTREE_")
    return name != variable and _reads(Config, name.lower().split("__"))


def _reads(model: type[BaseModel], path: list[str]) -> bool:
    field = model.model_fields.get(path[0])
    if field is None:
        return False
    return len(path) == 1 or any(_reads(below, path[1:]) for below in _models(field.annotation))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in {Union, UnionType}:
        for choice in get_args(annotation):
            yield from _models(choice)
