"""The subset of PromQL that the alerts use, evaluated over recorded samples.

Rates use the samples in the window, with counter resets, but without Prometheus' extrapolation to the window's edges.
Unsupported syntax raises NotImplementedError, so no expression passes untested.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import promql_parser as ast

STALE_S = 300

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]


class Series(NamedTuple):
    """Name, labels and samples of a series. Samples are pairs of seconds and value, in order."""

    name: str
    labels: dict[str, str]
    samples: list[tuple[float, float]]


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The names that an expression selects, each with the labels that it matches or keeps."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: ast.Expr, kept: frozenset[str]) -> None:
        if isinstance(node, ast.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, ast.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers} | kept))
        elif isinstance(node, ast.AggregateExpr):
            visit(node.expr, frozenset(_labels(node.modifier)) | kept)
        elif isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument, kept)
        elif isinstance(node, ast.BinaryExpr):
            visit(node.lhs, kept)
            visit(node.rhs, kept)
        elif isinstance(node, ast.ParenExpr | ast.UnaryExpr):
            visit(node.expr, kept)
        elif not isinstance(node, ast.NumberLiteral | ast.StringLiteral):
            raise NotImplementedError(type(node).__name__)

    visit(ast.parse(expression), frozenset())
    return iter(found)


def evaluate(expression: str, series: Iterable[Series], at: float) -> Vector:
    """The value of an expression at a time."""
    value = _Evaluation(list(series), at).value(ast.parse(expression))
    assert isinstance(value, dict), "the expression is a scalar"
    return value


class _Evaluation:
    def __init__(self, series: list[Series], at: float) -> None:
        self._series = series
        self._at = at

    def value(self, node: ast.Expr) -> Vector | float:
        match node:
            case ast.NumberLiteral():
                return node.val
            case ast.ParenExpr():
                return self.value(node.expr)
            case ast.VectorSelector():
                found = ((one, _at(one, self._at)) for one in self._selected(node))
                return {_key(one.labels): value for one, value in found if value is not None}
            case ast.AggregateExpr():
                return _aggregated(str(node.op), self._vector(node.expr), _labels(node.modifier))
            case ast.Call():
                return self._call(node)
            case ast.BinaryExpr():
                return self._binary(node)
        raise NotImplementedError(type(node).__name__)

    def _vector(self, node: ast.Expr) -> Vector:
        value = self.value(node)
        assert isinstance(value, dict)
        return value

    def _selected(self, selector: ast.VectorSelector) -> Iterator[Series]:
        for one in self._series:
            labels = {"__name__": one.name, **one.labels}
            if one.name == selector.name and all(
                _matches(m, labels.get(m.name, "")) for m in selector.matchers.matchers
            ):
                yield one

    def _call(self, node: ast.Call) -> Vector:
        match node.func.name, *node.args:
            case "rate", ast.MatrixSelector() as matrix:
                span = matrix.range.total_seconds()
                rates = {
                    _key(one.labels): _rate(one, self._at - span, self._at)
                    for one in self._selected(matrix.vector_selector)
                }
                return {labels: rate for labels, rate in rates.items() if rate is not None}
            case "absent", argument:
                return {} if self.value(argument) else {(): 1.0}
            case "histogram_quantile", share, argument:
                return _quantiles(self.value(share), self._vector(argument))
        raise NotImplementedError(node.func.name)

    def _binary(self, node: ast.BinaryExpr) -> Vector | float:
        if node.modifier is not None and (node.modifier.matching is not None or node.modifier.return_bool):
            raise NotImplementedError("matching by chosen labels")
        left, right, operator = self.value(node.lhs), self.value(node.rhs), str(node.op)
        if operator in ("and", "unless"):
            return {labels: value for labels, value in left.items() if (labels in right) == (operator == "and")}
        calculation = _OPERATORS[operator]
        if not isinstance(left, dict) and not isinstance(right, dict):
            return float(calculation(left, right))
        if not isinstance(left, dict):
            pairs = {labels: (left, value) for labels, value in right.items()}
        elif not isinstance(right, dict):
            pairs = {labels: (value, right) for labels, value in left.items()}
        else:
            pairs = {labels: (left[labels], right[labels]) for labels in left.keys() & right.keys()}
        if operator in _COMPARISONS:
            return {labels: pair[0] for labels, pair in pairs.items() if calculation(*pair)}
        return {labels: calculation(*pair) for labels, pair in pairs.items()}


_COMPARISONS = {">", "<", "==", "!=", ">=", "<="}
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else (math.nan if not a else math.copysign(math.inf, a)),
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
}


def _key(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _labels(modifier: ast.AggModifier | None) -> list[str]:
    if modifier is not None and modifier.type != ast.AggModifierType.By:
        raise NotImplementedError("without")
    return [] if modifier is None else modifier.labels


def _matches(matcher: ast.Matcher, value: str) -> bool:
    match matcher.op:
        case ast.MatchOp.Equal:
            return value == matcher.value
        case ast.MatchOp.NotEqual:
            return value != matcher.value
        case ast.MatchOp.Re:
            return re.fullmatch(matcher.value, value) is not None
    return re.fullmatch(matcher.value, value) is None


def _at(series: Series, at: float) -> float | None:
    return next((value for time, value in reversed(series.samples) if at - STALE_S < time <= at), None)


def _rate(series: Series, after: float, until: float) -> float | None:
    inside = [(time, value) for time, value in series.samples if after <= time <= until]
    if len(inside) < 2:
        return None
    pairs = pairwise(inside)
    # A counter that falls was reset to 0.
    growth = sum(new - old if new >= old else new for (_, old), (_, new) in pairs)
    return growth / (inside[-1][0] - inside[0][0])


def _aggregated(operator: str, vector: Vector, by: list[str]) -> Vector:
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector.items():
        groups[tuple((name, kept) for name, kept in labels if name in by)].append(value)
    how = {"sum": sum, "max": max, "min": min}[operator]
    return {labels: how(values) for labels, values in groups.items()}


def _quantiles(share: float, vector: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in vector.items():
        bound = float(dict(labels)["le"])
        groups[tuple(label for label in labels if label[0] != "le")].append((bound, count))
    return {labels: _quantile(share, sorted(buckets)) for labels, buckets in groups.items()}


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    wanted = share * buckets[-1][1]
    if not buckets[-1][1]:
        return math.nan
    below, before = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            # Only the lower bound of the last bucket is known.
            return below if math.isinf(bound) else below + (bound - below) * (wanted - before) / (count - before)
        below, before = bound, count
    raise AssertionError("a histogram ends with +Inf")
