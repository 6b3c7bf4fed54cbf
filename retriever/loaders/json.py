"""The loader of JSON."""

import json
from collections.abc import Iterator
from typing import TypeAlias

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, decode_whole, joined
from retriever.loaders.tables import table_blocks

Value: TypeAlias = "dict[str, Value] | list[Value] | str | bool | None"

JSON_DOCUMENT = "text/json"
"""The media type of a JSON file. The API takes application/json for the form ``{"text": ...}``."""

_MOST_LEVELS = 100


def load_json(content: bytes) -> LoadedText:
    """Return lines ``key: value``, indented by level. The values of a top-level object have headings.

    A list of alike flat objects becomes a table. Numbers stay as they are written.
    """
    text = decode_whole(content)
    try:
        value: Value = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise BrokenDocument(f"the JSON cannot be parsed: {error}") from error
    return LoadedText(None, joined(_sections(value)))


def _sections(value: Value) -> Iterator[str]:
    if not isinstance(value, dict):
        yield from _blocks(value)
        return
    plain: dict[str, Value] = {key: inner for key, inner in value.items() if not isinstance(inner, dict | list)}
    yield "\n".join(_lines(plain, 0))
    for key, inner in value.items():
        if key not in plain and inner:
            yield f"# {' '.join(key.split())}"
            yield from _blocks(inner)


def _blocks(value: Value) -> Iterator[str]:
    """Yield an outline: a table of flat objects, one block per element of another list, one block otherwise."""
    if not isinstance(value, list):
        yield "\n".join(_lines(value, 0))
    elif rows := _rows(value):
        yield from table_blocks(rows)
    else:
        for element in value:
            yield "\n".join(_lines(element, 0))


def _rows(values: list[Value]) -> list[list[str]]:
    """Return the rows of a table, or none unless all values are flat objects with the same keys."""
    objects = [value for value in values if isinstance(value, dict)]
    flat = not any(isinstance(inner, dict | list) for each in objects for inner in each.values())
    if not flat or len(objects) < len(values) or any(each.keys() != objects[0].keys() for each in objects):
        return []
    columns = list(objects[0]) if objects else []
    return [columns, *([_scalar(each[key]) for key in columns] for each in objects)]


def _lines(value: Value, level: int) -> Iterator[str]:
    if level > _MOST_LEVELS:
        raise _too_deep()
    indent = "  " * level
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                yield f"{indent}{key}:"
                yield from _lines(inner, level + 1)
            else:
                yield f"{indent}{key}: {_scalar(inner)}"
    elif isinstance(value, list):
        for element in value:
            if isinstance(element, dict | list):
                yield f"{indent}-"
                yield from _lines(element, level + 1)
            else:
                yield f"{indent}- {_scalar(element)}"
    else:
        yield f"{indent}{_scalar(value)}"


def _scalar(value: Value) -> str:
    """Return a value as JSON writes it, but a string without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _too_deep() -> BrokenDocument:
    return BrokenDocument(f"the JSON is nested deeper than {_MOST_LEVELS} levels")
