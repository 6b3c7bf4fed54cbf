"""Requests about documents, jobs, graphs and the cache: odd names, cursors, deep JSON, keys used twice."""

import json
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.inputs.questions import COLLECTION
from ragtree_lab.fuzz.inputs.texts import CONTROL_TOKENS, names, questions
from ragtree_lab.fuzz.requests import Caller, Input, Piece, Request, call, json_call, one

_DOCUMENTS = f"/v1/collections/{COLLECTION}/documents"
_BATCH = f"{_DOCUMENTS}:batch"
_NDJSON = {"Content-Type": "application/x-ndjson"}
_PLAIN = {"Content-Type": "text/plain"}
_CURSORS = ["", "x", "AAAA", "0", "-1", "9" * 40, "eyJhIjoxfQ==", "%00", "' OR 1=1"]


def _escaped(name: str, safe: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe=safe)


def named_things() -> SearchStrategy[Input]:
    """Reads, writes and deletions of documents, chunks, collections, jobs and graphs with odd names."""
    safe = st.sampled_from(["", "/", "/.%"])
    name = st.builds(_escaped, names(), safe)
    path = st.builds(
        lambda form, a, b: form.format(a=a, b=b),
        st.sampled_from(
            [
                "/v1/collections/{a}",
                "/v1/collections/{a}/documents",
                "/v1/collections/{a}/documents/{b}",
                f"{_DOCUMENTS}/{{a}}",
                f"{_DOCUMENTS}/{{a}}/chunks/{{b}}",
                "/v1/jobs/{a}",
                "/v1/models/{a}",
                f"/v1/collections/{COLLECTION}/graph?label={{a}}&label={{b}}",
                "/v1/collections/{a}/graph?max_nodes=1000&max_relations=2000",
                "/v1/admin/cache/documents/{a}?collection={b}",
                "/{a}",
                "/{a}/{b}",
            ]
        ),
        name,
        name,
    )
    return st.builds(
        lambda method, target, caller: one(call(method, _line(target), caller=caller)),
        st.sampled_from(["GET", "GET", "GET", "HEAD", "DELETE", "PATCH", "OPTIONS"]),
        path,
        st.sampled_from([Caller.STRANGER, Caller.STRANGER, Caller.NOBODY, Caller.ADMIN]),
    )


def pages() -> SearchStrategy[Input]:
    """Lists with cursors and limits that nobody gave out."""
    return st.builds(
        lambda limit, after: one(call("GET", f"{_DOCUMENTS}?limit={limit}&after={quote(after)}")),
        st.sampled_from(["1", "100", "0", "-1", "1e9", "x", "9" * 5000]),
        st.one_of(st.sampled_from(_CURSORS), st.text(max_size=40)),
    )


def small_documents() -> SearchStrategy[Input]:
    """Documents as JSON and as lines of a batch, with control tokens, odd attributes and triplets."""
    values = st.one_of(st.booleans(), st.floats(), st.text(max_size=20), st.none(), st.just([1]))
    body = st.fixed_dictionaries(
        {
            "text": st.one_of(
                questions(2000),
                st.builds(" says ".join, st.lists(st.sampled_from(CONTROL_TOKENS), min_size=2, max_size=8)),
            )
        },
        optional={
            "title": questions(300),
            "filename": names(),
            "attributes": st.dictionaries(names(), values, max_size=4),
            "triplets": st.lists(
                st.fixed_dictionaries({"head": names(), "relation": names(), "tail": names()}), max_size=3
            ),
        },
    )
    numbers = st.integers(0, 400)
    whole = st.builds(
        lambda given, number: one(json_call(f"{_DOCUMENTS}/small-{number}", given, method="PUT")), body, numbers
    )
    lines = st.builds(
        lambda given, broken: one(
            call(
                "POST", _BATCH, b"\n".join(_line_of(n, each) for n, each in enumerate(given)) + broken, headers=_NDJSON
            )
        ),
        st.lists(body, max_size=4),
        st.sampled_from([b"", b"\n", b"\n{", b"\n\xff", b"\nnull", b"\n[]\n\n\n"]),
    )
    titled = st.builds(
        lambda title, attributes, number: one(
            call(
                "PUT",
                f"{_DOCUMENTS}/small-{number}?title={_escaped(title, '')}&attributes={quote(attributes)}",
                b"A mill.",
                headers=_PLAIN,
            )
        ),
        questions(300),
        st.sampled_from(["{}", "[]", '{"a":1e999}', "{", '{"a":{}}', "null", '{"a":NaN}']),
        numbers,
    )
    return st.one_of(whole, lines, titled)


def repeated_uploads() -> SearchStrategy[Input]:
    """The same Idempotency-Key several times at once, with equal and with other bodies."""

    def scene(key: str, texts: list[str], gap_s: float) -> Input:
        headers = {"Content-Type": "text/plain", "Idempotency-Key": key}
        sent = [call("PUT", f"{_DOCUMENTS}/repeated", text.encode(), headers=headers) for text in texts]
        return Input(
            requests=tuple(Request(pieces=(Piece(content),), starts_s=n * gap_s) for n, content in enumerate(sent))
        )

    keys = st.sampled_from(["a", "k" * 255, "k" * 256, "a b", "~!@#", ""])
    texts = st.lists(st.sampled_from(["A mill.", "A barn.", ""]), min_size=2, max_size=4)
    return st.builds(scene, keys, texts, st.sampled_from([0.0, 0.05]))


def deep_json() -> SearchStrategy[Input]:
    """JSON of any depth and odd JSON, to every route that reads it."""
    targets = st.sampled_from(
        [
            ("POST", "/query"),
            ("POST", "/v1/search"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/responses"),
            ("PUT", f"{_DOCUMENTS}/deep"),
            ("POST", "/v1/admin/cache/pin"),
            ("POST", "/v1/admin/cache/warm"),
            ("PUT", f"/v1/collections/{COLLECTION}"),
        ]
    )
    nested = st.builds(
        lambda opening, closing, depth: (opening * depth + "1" + closing * depth).encode(),
        *(
            st.sampled_from(["[", '{"query":', '{"filters":{"type":"and","filters":[', '{"messages":[']),
            st.sampled_from(["]", "}", "]}}", ""]),
        ),
        st.sampled_from([10, 200, 1000, 100_000]),
    )
    odd = st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b"1e999",
            b"NaN",
            b'{"query":"\\ud800"}',
            b'{"query":"x","query":"y"}',
            b"\xef\xbb\xbf{}",
            b"\xff\xfe{\x00}\x00",
            b'{"query":"\x00"}',
            b'{"query":' + b"9" * 5000 + b"}",
            b'{"' + b"k" * 100_000 + b'":1}',
            json.dumps({str(i): i for i in range(8000)}).encode(),
        ]
    )
    return st.builds(
        lambda target, body, kind: one(
            call(target[0], target[1], body, caller=_owner(target[1]), headers={"Content-Type": kind})
        ),
        targets,
        st.one_of(nested, odd),
        st.sampled_from(
            ["application/json", "application/json", "application/json; charset=utf-16", "text/json", "", "a/b" * 500]
        ),
    )


def administration(tenant: str) -> SearchStrategy[Input]:
    """Calls of the admin routes with extreme values, by administrators and by others. The cache is not cleared."""
    names_of_tenants = st.one_of(st.none(), st.just(tenant), names())
    pins = st.builds(
        lambda document, owner, pinned: (
            "/v1/admin/cache/pin",
            {"document_id": document, "tenant": owner, "pinned": pinned, "collection": COLLECTION},
        ),
        names(),
        names_of_tenants,
        st.booleans(),
    )
    warms = st.builds(
        lambda asked, owner: ("/v1/admin/cache/warm", {"queries": asked, "tenant": owner, "collection": COLLECTION}),
        st.lists(questions(200), max_size=3),
        names_of_tenants,
    )
    ahead = st.builds(
        lambda top, donors: ("/v1/admin/cache/precompute", {"top": top, "donors": donors, "collection": COLLECTION}),
        st.sampled_from([0, 1, 3, 1_000_001, None]),
        st.booleans(),
    )
    callers = st.sampled_from([Caller.ADMIN, Caller.ADMIN, Caller.STRANGER, Caller.NOBODY])
    posts = st.builds(
        lambda given, caller: one(json_call(*given, caller=caller)), st.one_of(pins, warms, ahead), callers
    )
    reads = st.builds(
        lambda target, caller: one(call("GET", target, caller=caller)),
        st.sampled_from(
            [
                "/v1/admin/cache/stats",
                "/v1/admin/cache/activity",
                *(f"/v1/admin/cache/tree?depth={d}&limit={n}" for d in (0, 8, 99, -1) for n in (0, 1, 10_000, 10**9)),
            ]
        ),
        callers,
    )
    return st.one_of(posts, reads)


def _owner(path: str) -> Caller:
    return Caller.ADMIN if path.startswith("/v1/admin") else Caller.STRANGER


def _line(target: str) -> str:
    """The target without what would end the request's first line."""
    return "".join(c if "!" <= c <= "~" else quote(c.encode("utf-8", "surrogatepass")) for c in target)


def _line_of(number: int, body: dict[str, object]) -> bytes:
    return json.dumps({"id": f"line-{number}", **body}).encode()
