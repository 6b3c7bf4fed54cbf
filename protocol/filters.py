"""Metadata filters in OpenAI's format: comparisons of one attribute, joined by ``and`` and ``or``."""

from typing import Literal

import msgspec

AttributeValue = str | float | bool
"""The value of a document's attribute. Integers are floats, as in JSON."""

Attributes = dict[str, AttributeValue]


class Comparison(msgspec.Struct, frozen=True, tag=True):
    """Compares one attribute with a value. ``in`` and ``nin`` take a list of values, the others one value."""

    key: str
    op: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    value: AttributeValue | tuple[AttributeValue, ...]


class Compound(msgspec.Struct, frozen=True, tag=True):
    """Joins filters: all (``and``) or at least one (``or``) must hold."""

    op: Literal["and", "or"]
    filters: tuple["Filter", ...]


Filter = Comparison | Compound
