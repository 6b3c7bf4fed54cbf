"""A key figure of a benchmark, and how it is found in the benchmark's result."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

RATIO = "x"

_UNITS = {"%": (100.0, " %"), "GB/s": (1e-9, " GB/s")}
"""By what a unit's values are multiplied to be shown, and what stands behind them."""


class Figure(NamedTuple):
    """A key figure: its title, its place in the result, and its unit.

    A place is a list of names with dots in between. ``*`` is every name of an object. ``rows[rate]`` is every element
    of a list, told apart by its field ``rate``, by several fields, or with ``rows[]`` by its position. What ``*`` and
    brackets stand for replaces ``{}`` in the title. With ``over``, the figure is a ratio: that place is divided by.
    """

    title: str
    place: str
    unit: str = ""
    over: str = ""

    def rows(self, result: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield titles and values as text. What the result lacks is left out."""
        below = dict(_found(result, self.over.split("."), ())) if self.over else {}
        for names, value in _found(result, self.place.split("."), ()):
            title = self.title.format(*names)
            if not self.over:
                yield title, _shown(value, self.unit)
            elif divisor := below.get(names):
                yield title, _shown(value / divisor, self.unit)


def _found(node: Any, place: Sequence[str], names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    """Yield what stands at a place, with the names that tell its values apart."""
    if not place:
        if node is not None:
            yield names, node
        return
    if not isinstance(node, dict):
        return
    name, bracket, fields = place[0].rstrip("]").partition("[")
    if name == "*":
        for key, inner in node.items():
            yield from _found(inner, place[1:], (*names, key))
    elif bracket:
        for position, inner in enumerate(node.get(name) or [], start=1):
            told = [_shown(inner[field]) for field in fields.split(",")] if fields else [str(position)]
            yield from _found(inner, place[1:], (*names, *told))
    else:
        yield from _found(node.get(name), place[1:], names)


def _shown(value: Any, unit: str = "") -> str:  # noqa: ANN401
    """Return a value as text: ratios with two decimals, other numbers with three digits or as whole numbers."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    factor, suffix = _UNITS.get(unit, (1.0, f" {unit}" if unit else ""))
    if isinstance(value, int) and factor == 1:
        return f"{value:,}{suffix}"
    scaled = value * factor
    form = ",.0f" if abs(scaled) >= 100 else ".2f" if unit == RATIO else ".3g"
    return f"{scaled:{form}}{suffix}"
