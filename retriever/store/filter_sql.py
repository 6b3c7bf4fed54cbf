"""Translate filters into SQL conditions on documents."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from protocol.errors import InvalidRequest
from protocol.filters import AttributeValue, Comparison, Compound, Filter

_DEEPEST = 8
_MOST_COMPARISONS = 128
_MOST_VALUES = 1000
_MOST_VALUES_IN_ALL = 10_000  # SQLite binds 32,766 in one statement
_ORDERED = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class Condition(NamedTuple):
    """A condition on a row ``d`` of the documents table, with the values to bind to its placeholders, in order.

    No part of a filter is ever written into the SQL text.
    """

    sql: str
    values: tuple[AttributeValue, ...]


def condition_of(filters: Filter) -> Condition:
    """Return the SQL condition of a filter.

    Values of different types never compare: the string "5" is not equal to, above or below the number 5. ``ne`` and
    ``nin`` negate ``eq`` and ``in``, so they also match documents without the attribute. Raises InvalidRequest if the
    filter is malformed, too deep or too large.
    """
    if sum(1 for _ in filter_keys(filters)) > _MOST_COMPARISONS:
        raise InvalidRequest(f"a filter has at most {_MOST_COMPARISONS} comparisons", param="filters")
    condition = _condition(filters)
    if len(condition.values) > _MOST_VALUES_IN_ALL:
        raise InvalidRequest(f"a filter has at most {_MOST_VALUES_IN_ALL:,} values in all", param="filters")
    return condition


def filter_keys(filters: Filter, depth: int = 1) -> Iterator[str]:
    """Yield the attribute keys of a filter. Raises InvalidRequest if it is too deep or a key cannot be encoded."""
    if depth > _DEEPEST:
        raise InvalidRequest(f"a filter nests at most {_DEEPEST} levels deep", param="filters")
    if isinstance(filters, Comparison):
        if any("\ud800" <= character <= "\udfff" for character in filters.key):
            raise InvalidRequest("a filter key contains a lone surrogate", param="filters")
        yield filters.key
    else:
        for part in filters.filters:
            yield from filter_keys(part, depth + 1)


def kind_of(value: object) -> str:
    """Return the type name that the store keeps with an attribute value. Raises InvalidRequest."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    raise InvalidRequest("an attribute must be a string, a number or a boolean", param="filters")


def _condition(filters: Filter) -> Condition:
    if not isinstance(filters, Compound):
        return _comparison(filters)
    if filters.op not in ("and", "or"):
        raise InvalidRequest(f"unknown operator {filters.op}: join filters with and or or", param="filters")
    if not filters.filters:
        raise InvalidRequest(f"an {filters.op} needs at least one filter", param="filters")
    parts = [_condition(part) for part in filters.filters]
    sql = f" {filters.op.upper()} ".join(part.sql for part in parts)
    return Condition(f"({sql})", tuple(value for part in parts for value in part.values))


def _comparison(comparison: Comparison) -> Condition:
    key, op, value = comparison.key, comparison.op, comparison.value
    match op:
        case "in" | "nin":
            if isinstance(value, str) or not isinstance(value, tuple | list) or len(value) > _MOST_VALUES:
                raise InvalidRequest(f"{op} takes a list of at most {_MOST_VALUES} values", param="filters")
            return _attribute_is(key, tuple(value), negated=op == "nin")
        case "eq" | "ne":
            return _attribute_is(key, (_single(op, value),), negated=op == "ne")
        case "gt" | "gte" | "lt" | "lte":
            single = _single(op, value)
            if isinstance(single, bool):
                raise InvalidRequest(f"{op} does not apply to booleans", param="filters")
            sql = f"a.kind = ? AND a.value {_ORDERED[op]} ?"
            return _exists(key, sql, (kind_of(single), _bindable(single)))
        case _:
            raise InvalidRequest(f"unknown comparison {op}", param="filters")


def _attribute_is(key: str, values: tuple[AttributeValue, ...], *, negated: bool) -> Condition:
    by_kind: dict[str, list[AttributeValue]] = defaultdict(list)
    for value in values:
        by_kind[kind_of(value)].append(_bindable(value))
    # One IN per type, because SQLite limits the length of an OR chain.
    marks = (",".join("?" * len(found)) for found in by_kind.values())
    any_of = " OR ".join(f"(a.kind = ? AND a.value IN ({of_kind}))" for of_kind in marks) or "FALSE"
    found = _exists(key, f"({any_of})", tuple(part for kind, found in by_kind.items() for part in (kind, *found)))
    return Condition(f"NOT {found.sql}", found.values) if negated else found


def _exists(key: str, sql: str, values: tuple[AttributeValue, ...]) -> Condition:
    has = f"SELECT 1 FROM attributes a WHERE a.document = d.id AND a.key = ? AND {sql}"  # noqa: S608  # nosec B608  # bound
    return Condition(f"EXISTS ({has})", (key, *values))


def _single(op: str, value: object) -> AttributeValue:
    if isinstance(value, str | int | float):
        return value
    raise InvalidRequest(f"{op} takes a single string, number or boolean", param="filters")


def _bindable(value: AttributeValue) -> AttributeValue:
    """Return a value that SQLite can bind: no lone surrogates, and no unbounded integers."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    try:
        return value if isinstance(value, bool) else float(value)
    except OverflowError as error:
        raise InvalidRequest("a filter's number is too large", param="filters") from error
