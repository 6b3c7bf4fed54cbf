"""Schemas that xgrammar takes too long for, or too much memory or stack."""

import json

from hypothesis import strategies as st

PROPERTIES = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "years": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "years"],
    "additionalProperties": False,
}
ORDINARY = json.dumps(PROPERTIES)


def matching(pattern: str) -> dict:
    return {"type": "string", "pattern": pattern}


def optional(count: int) -> dict:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


DEEP = {
    "nested groups": matching("(" * 30_000 + "a" + ")" * 30_000),
    "nested groups in a property": {"type": "object", "properties": {"a": matching("(?:" * 30_000 + ")" * 30_000)}},
}
COSTLY = {
    "optional properties": optional(3_000),
    "a long string": {"type": "string", "maxLength": 3_000_000},
    "nested repetitions": matching("(.{0,2000}x){0,2000}"),
    "alternatives of many lengths": matching("(" + "|".join(f".{{{length}}}" for length in range(1, 99)) + ")*"),
}
LARGE = {"anyOf": [optional(10) for _ in range(500)]}

_pieces = st.sampled_from(["a", ".", "[^b]", r"\d", "(a|a)", "é", "[\\u0400-\\uffff]"])
_repeats = st.sampled_from(["", "*", "+", "?", "{0,40}", "{7,900}", "{1,100000}"])
_patterns = st.recursive(
    st.tuples(_pieces, _repeats).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=6).map("".join),
        st.lists(inner, min_size=2, max_size=6).map(lambda some: f"({'|'.join(some)})"),
        st.tuples(inner, _repeats).map(lambda one: f"({one[0]}){one[1]}"),
        st.tuples(inner, st.integers(2, 40)).map(lambda one: one[0] * one[1]),
        st.tuples(inner, st.integers(2, 3_000)).map(lambda one: "(" * one[1] + one[0] + ")" * one[1]),
    ),
    max_leaves=8,
)
_leaves = st.one_of(
    st.fixed_dictionaries({"type": st.just("string"), "pattern": _patterns}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": st.integers(), "maximum": st.integers()}),
    st.fixed_dictionaries({"enum": st.integers(1, 3_000).map(lambda many: [f"value {one}" for one in range(many)])}),
    st.sampled_from([{"$ref": "#"}, {}, {"type": "nonsense"}, {"const": "\x00"}, {"type": "string", "format": "uri"}]),
)
nasty_schemas = (
    st.recursive(
        _leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.integers(1, 30)).map(lambda one: {"anyOf": [one[0]] * one[1]}),
            st.tuples(inner, inner).map(lambda some: {"allOf": list(some)}),
            st.tuples(inner, st.integers(0, 10_000)).map(
                lambda one: {"type": "array", "items": one[0], "maxItems": one[1]}
            ),
            st.tuples(inner, st.integers(1, 40)).map(
                lambda one: {"type": "object", "properties": {f"p{name}": one[0] for name in range(one[1])}}
            ),
        ),
        max_leaves=4,
    )
    .map(json.dumps)
    .filter(lambda schema: len(schema) < 262_144)
)
