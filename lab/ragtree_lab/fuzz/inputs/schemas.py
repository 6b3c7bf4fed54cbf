"""Schemas and regexes that are hard to compile: nested, recursive, wide, enormous, contradictory."""

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.inputs.questions import Endpoint
from ragtree_lab.fuzz.requests import Input, json_call, one

_CLASSES = [
    r"\p{L}",
    r"\P{Lu}",
    r"\p{Han}",
    r"[\u0000-\U0010ffff]",
    r"[^\x00]",
    "[一-龥]",
    r"[\w\W]",
    r"\d",
    ".",
    "[^",
    "[z-a]",
    r"\b",
]
_COUNTS = ["*", "+", "?", "*?", "{0,}", "{1000}", "{0,5000}", "{65535}", "{1,2147483648}", "{5,1}", "{,3}", "**"]
_DEPTHS = [2, 30, 300, 3000, 30_000]
_SIZES = [10, 200, 1000, 3000]
_REFUSED_WITHIN_S = 60.0
"""A compile may use 5 s of processor time at a low priority, and others wait for it."""


def _nested(opening: str, closing: str, depth: int) -> str:
    return opening * depth + "a" + closing * depth


def patterns() -> SearchStrategy[str]:
    """Regexes: deep groups, huge repetitions, alternations, classes, look-arounds, back references and broken ones."""
    atoms = st.one_of(
        st.sampled_from(_CLASSES), st.sampled_from(["a", "ab", r"\\", "é", "😀", r"\1", "(?=a)", "(?<!b)", "^", "$"])
    )
    small = st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds(lambda a, count: f"({a}){count}", inner, st.sampled_from(_COUNTS)),
            st.builds(lambda several: f"({'|'.join(several)})", st.lists(inner, min_size=1, max_size=6)),
            st.builds("".join, st.lists(inner, min_size=1, max_size=4)),
        ),
        max_leaves=12,
    )
    brackets = st.sampled_from(
        [("(", ")"), ("(?:", ")"), ("(", ")?"), ("(", ")*"), ("[", "]"), ("(", ""), ("((", "))+"), ("(a|", ")")]
    )
    deep = st.builds(lambda pair, depth: _nested(pair[0], pair[1], depth), brackets, st.sampled_from(_DEPTHS))
    wide = st.builds(
        lambda count: "|".join(f"w{number}" for number in range(count)), st.sampled_from([*_SIZES, 20_000])
    )
    repeated = st.builds(
        lambda atom, outer, inner: f"(({atom}){{0,{outer}}}){{0,{inner}}}",
        st.sampled_from(_CLASSES),
        st.sampled_from(_SIZES),
        st.sampled_from(_SIZES),
    )
    return st.one_of(small, deep, wide, repeated)


def _wide(count: int, required: bool, closed: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {f"p{number}": {"type": "string"} for number in range(count)}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(properties)
    if closed:
        schema["additionalProperties"] = False
    return schema


def _deep(depth: int, kind: str) -> dict[str, Any]:
    # The body is JSON, whose own depth is bounded: deeper ones are sent as they are and refused.
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(min(depth, 900)):
        kinds: dict[str, dict[str, Any]] = {
            "array": {"type": "array", "items": schema},
            "object": {"type": "object", "properties": {"a": schema}, "required": ["a"]},
            "anyOf": {"anyOf": [schema, {"type": "null"}]},
            "allOf": {"allOf": [schema]},
            "not": {"not": schema},
        }
        schema = kinds[kind]
    return schema


def _references(count: int, shape: str) -> dict[str, Any]:
    if shape == "itself":
        return {"$ref": "#"}
    names = [f"d{number}" for number in range(count)]
    if shape == "doubling":
        following = {name: [{"$ref": f"#/$defs/{after}"}] * 2 for name, after in pairwise(names)}
        definitions: dict[str, Any] = {
            name: {"type": "array", "prefixItems": items, "items": False} for name, items in following.items()
        }
        definitions[names[-1]] = {"type": "null"}
    else:
        definitions = {
            name: {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{names[(number + 1) % count]}"}}}
            for number, name in enumerate(names)
        }
    if shape == "missing":
        definitions[names[-1]] = {"$ref": "#/$defs/absent"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _any_schema() -> SearchStrategy[dict[str, Any]]:
    numbers = st.sampled_from([0, 1, -1, 10**6, 2**63, 1e308, -0.5])
    leaves = st.one_of(
        st.builds(lambda pattern: {"type": "string", "pattern": pattern}, patterns()),
        st.builds(lambda low, high: {"type": "string", "minLength": low, "maxLength": high}, numbers, numbers),
        st.builds(lambda low, high: {"type": "integer", "minimum": low, "maximum": high}, numbers, numbers),
        st.builds(lambda low, step: {"type": "number", "exclusiveMinimum": low, "multipleOf": step}, numbers, numbers),
        st.builds(
            lambda form: {"type": "string", "format": form},
            st.sampled_from(["date-time", "uuid", "email", "ipv6", "regex", "x"]),
        ),
        st.sampled_from(
            [
                {},
                {"type": "x"},
                {"type": ["string", "null"]},
                {"const": None},
                {"enum": []},
                {"type": "object", "minProperties": 10**6},
            ]
        ),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda several: {"anyOf": several}, st.lists(inner, max_size=4)),
            st.builds(lambda several: {"oneOf": several}, st.lists(inner, max_size=4)),
            st.builds(
                lambda first, size: {"type": "array", "items": first, "minItems": size, "maxItems": size},
                inner,
                numbers,
            ),
            st.builds(lambda first, key: {"type": "object", "patternProperties": {key: first}}, inner, patterns()),
            st.builds(
                lambda first, key: {"type": "object", "properties": {key: first}, "required": [key]},
                inner,
                st.text(max_size=10),
            ),
            st.builds(lambda a, b: {"if": a, "then": b, "else": a}, inner, inner),
        ),
        max_leaves=8,
    )


def schemas() -> SearchStrategy[dict[str, Any]]:
    """JSON schemas, of which each is hard in one or several ways."""
    enormous = st.builds(
        lambda count, length: {"enum": [f"{number}".rjust(length, "x") for number in range(count)]},
        st.sampled_from([10, 1000, 10_000]),
        st.sampled_from([1, 15]),
    )
    return st.one_of(
        st.builds(
            lambda pattern: {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}, patterns()
        ),
        st.builds(_wide, st.sampled_from(_SIZES), st.booleans(), st.booleans()),
        st.builds(
            _deep, st.sampled_from([3, 60, 400, 900]), st.sampled_from(["array", "object", "anyOf", "allOf", "not"])
        ),
        st.builds(
            _references, st.sampled_from([1, 5, 25, 500]), st.sampled_from(["itself", "ring", "doubling", "missing"])
        ),
        enormous,
        _any_schema(),
    )


def schema_requests(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """Questions whose answers are to follow such a schema. The client waits, or leaves while it is compiled."""

    def asked(endpoint: Endpoint, schema: dict[str, Any], leaves_s: float | None) -> Input:
        body = endpoint.body("What is listed?", 2)
        if endpoint.path.endswith("/responses"):
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        else:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return one(json_call(endpoint.path, body), leaves_s=leaves_s, refused_within_s=_REFUSED_WITHIN_S)

    formatted = [e for e in endpoints if e.path.endswith(("/chat/completions", "/responses"))]
    return st.builds(asked, st.sampled_from(formatted), schemas(), st.sampled_from([None, None, None, 0.5]))
