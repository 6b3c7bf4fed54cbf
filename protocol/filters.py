"""Metadata filters in the shape OpenAI gave them: comparisons of one attribute, joined by ``and`` and ``or``."""

from typing import Literal

import msgspec

AttributeValue = str | float | bool
"""What a document's attribute may hold; integers are floats, as in JSON."""

Attributes = dict[str, AttributeValue]


class Comparison(msgspec.Struct, frozen=True):
    """One attribute held against a value; ``in`` and ``nin`` take a list of values, the others a single one."""

    key: str
    op: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    value: AttributeValue | tuple[AttributeValue, ...]


class Compound(msgspec.Struct, frozen=True):
    """Several filters of which all (``and``) or at least one (``or``) must hold."""

    op: Literal["and", "or"]
    filters: tuple["Filter", ...]


Filter = Comparison | Compound
