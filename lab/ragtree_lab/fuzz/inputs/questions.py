"""Questions on every endpoint: sampling parameters in pairs, conversations, filters, and clients that leave."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.inputs.texts import long_texts, names, questions
from ragtree_lab.fuzz.requests import Caller, Input, Piece, Request, call, json_call, one

COLLECTION = "fuzzed"
"""The stranger's collection."""

_LARGEST_INTEGER = 2**53 - 1
_SAMPLING: Mapping[str, list[Any]] = {
    "temperature": [0, 1e-9, 0.01, 0.8, 1, 2],
    "top_p": [1e-9, 0.5, 1],
    "sampling_top_k": [0, 1, 2, 1_000_000],
    "min_p": [0, 0.5, 1],
    "frequency_penalty": [-2, -0.0, 2],
    "presence_penalty": [-2, 2],
    "repetition_penalty": [1e-9, 0.5, 1, 10],
    "logit_bias": [{}, {"0": 100}, {"0": -100}, {"9999999": 1}, {str(i): -100 for i in range(1024)}],
    "seed": [0, 42, -1, _LARGEST_INTEGER, -_LARGEST_INTEGER],
    "stop": ["a", " ", "\n", ["."] * 16, "the answer" * 50, ["é", "\ufffd"]],
    "n": [1, 2, 3, 16],
    "logprobs": [True, False, 0, 1, 20],
    "top_logprobs": [0, 1, 20, 21],
    "stream": [True, False],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
    "reuse": ["exact", "composed", "auto"],
    "recompute_share": [0, 0.15, 1],
    "document_order": ["retrieval", "canonical", "cached-first"],
    "mode": ["naive", "local", "global", "hybrid", "mix"],
    "search": ["dense", "sparse", "hybrid"],
    "rerank": [True, False],
    "max_tokens": [1, 2, 5, 131_072, 0],
    "only_need_context": [True, False],
    "max_total_tokens": [1, 100, 1_000_000],
    "max_entity_tokens": [0, 1_000_000],
    "max_relation_tokens": [0, 1, 1_000_000],
    "top_k": [1, 4, 100],
    "include": [["stages"], ["timeline"], ["logprobs"], ["results.text"], ["message.output_text.logprobs"]],
    "stream_options": [{"include_usage": True}, {"include_usage": False}],
}
_OF_QUERY = {"temperature", "top_p", "seed", "stream", "reuse", "recompute_share", "document_order", "mode", "search"}
_OF_QUERY |= {"rerank", "max_tokens", "only_need_context", "max_total_tokens", "max_entity_tokens", "top_k", "include"}
_FEW_TOKENS = st.integers(1, 4)


class Endpoint:
    """An endpoint that answers questions, and how it names what they have in common."""

    def __init__(self, path: str, model: str) -> None:
        self.path = path
        self._model = model

    def body(self, question: str, tokens: int) -> dict[str, Any]:
        """The smallest body that asks ``question`` and wants an answer of ``tokens`` tokens."""
        common: dict[str, Any] = {"collection": COLLECTION, "top_k": 1}
        if self.path == "/query":
            return {**common, "query": question, "max_tokens": tokens}
        common["model"] = self._model
        if self.path.endswith("/chat/completions"):
            return {**common, "messages": [{"role": "user", "content": question}], "max_tokens": tokens}
        if self.path.endswith("/responses"):
            return {**common, "input": question, "max_output_tokens": tokens}
        return {**common, "prompt": question, "max_tokens": tokens}

    def takes(self, parameter: str) -> bool:
        """Whether it may take a parameter. The OpenAI endpoints are also sent what they do not know."""
        return self.path != "/query" or parameter in _OF_QUERY


def sampling(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """Two parameters with extreme values, beside a temperature and a seed in many cases."""

    @st.composite
    def pairs(draw: st.DrawFn) -> Input:
        endpoint = draw(st.sampled_from(endpoints))
        body = endpoint.body(draw(questions(3000)), draw(_FEW_TOKENS))
        # Most parameters matter only where tokens are drawn.
        body |= draw(st.sampled_from([{}, {"temperature": 0.8}, {"temperature": 0.8, "seed": 42}]))
        body["top_k"] = draw(st.sampled_from([1, 1, 4, 8]))
        taken = [name for name in _SAMPLING if endpoint.takes(name)]
        for name in draw(st.lists(st.sampled_from(taken), min_size=2, max_size=2, unique=True)):
            body[name] = draw(st.sampled_from(_SAMPLING[name]))
        if body.get("n", 1) > 1:
            body.setdefault("temperature", 0.8)
        if body.get("max_tokens", 0) > 100:
            # The longest answer is asked for, and not waited for.
            return one(json_call(endpoint.path, body), leaves_s=1.0)
        return one(json_call(endpoint.path, body))

    return pairs()


def conversations(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """Conversations of up to thousands of messages, as large as a body may be."""
    roles = st.sampled_from(
        [["user"], ["user", "assistant"], ["system", "user"], ["assistant", "user", "user", "developer"]]
    )
    contents = st.one_of(st.sampled_from(["a", "", " ", "<|im_end|>", "\n"]), long_texts(200))
    counts = st.sampled_from([1, 3, 50, 500, 2500, 7501])

    @st.composite
    def of_messages(draw: st.DrawFn) -> Input:
        endpoint = draw(st.sampled_from([e for e in endpoints if e.path.endswith(("/chat/completions", "/responses"))]))
        order, content, count = draw(roles), draw(contents), draw(counts)
        # Together they fit into a body of the default size.
        fitting = content[: max(1, 200_000 // count - 40)]
        messages = [{"role": order[number % len(order)], "content": fitting} for number in range(count)]
        field = "messages" if endpoint.path.endswith("/chat/completions") else "input"
        body = endpoint.body("x", draw(_FEW_TOKENS)) | {field: messages}
        if draw(st.booleans()):
            body["follow_ups"] = draw(st.sampled_from(["alone", "joined", "rewritten", "x"]))
        return one(json_call(endpoint.path, body))

    return of_messages()


def _filters() -> SearchStrategy[Any]:
    values = st.one_of(st.booleans(), st.floats(allow_nan=True), st.text(max_size=20), st.integers(), st.none())
    keys = st.one_of(st.sampled_from(["pages", "lang", "x'y", "a.b", "$", "%"]), names())
    comparison = st.builds(
        lambda key, kind, value: {"key": key, "type": kind, "value": value},
        keys,
        st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "like"]),
        st.one_of(values, st.lists(values, max_size=5), st.just([0] * 1000)),
    )
    return st.recursive(
        comparison,
        lambda inner: st.builds(
            lambda kind, filters: {"type": kind, "filters": filters},
            st.sampled_from(["and", "or"]),
            st.lists(inner, max_size=4),
        ),
        max_leaves=12,
    )


def searches() -> SearchStrategy[Input]:
    """Searches with filters, modes, long questions and names of collections."""
    fields = st.fixed_dictionaries(
        {"query": questions(40_000), "top_k": st.sampled_from([1, 2, 100, 101])},
        optional={
            "filters": _filters(),
            "collection": st.one_of(st.just(COLLECTION), names()),
            "mode": st.sampled_from(_SAMPLING["mode"]),
            "search": st.sampled_from(["dense", "sparse", "hybrid", "x"]),
            "only_need_context": st.booleans(),
        },
    )
    return st.builds(lambda body: one(json_call("/v1/search", {"collection": COLLECTION} | body)), fields)


def embeddings(model: str) -> SearchStrategy[Input]:
    """Texts to embed: many, long and odd ones."""
    inputs = st.one_of(
        questions(8000), st.lists(questions(100), max_size=8), st.sampled_from([["a"] * 2048, [1, 2], [[]], [""]])
    )
    fields = st.fixed_dictionaries(
        {"model": st.just(model), "input": inputs},
        optional={
            "dimensions": st.sampled_from([1, 384, 385, 1_000_000, 0]),
            "encoding_format": st.sampled_from(["float", "base64", "x"]),
            "input_type": st.sampled_from(["query", "document"]),
        },
    )
    return st.builds(lambda body: one(json_call("/v1/embeddings", body)), fields)


def leaving(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """Clients of streams and of replies that leave at any moment, with and without a reset."""

    def asked(endpoint: Endpoint, question: str, stream: bool, leaves_s: float, resets: bool) -> Input:
        body = endpoint.body(question, 64) | {"stream": stream}
        return one(json_call(endpoint.path, body), leaves_s=leaves_s, resets=resets)

    moments = st.floats(0.001, 3.0)
    return st.builds(asked, st.sampled_from(endpoints), questions(1500), st.booleans(), moments, st.booleans())


def choices_beside_deletions(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """Several answers to one question while a document that it finds is replaced or deleted."""

    def scene(endpoint: Endpoint, document: int, count: int, moment: float, deletes: bool) -> Input:
        path = f"/v1/collections/{COLLECTION}/documents/{quote(f'passing-{document}')}"
        plain = {"Content-Type": "text/plain"}
        text = f"Ledger {document} lists {document * 7} barrels of salt. ".encode() * 12
        asks = endpoint.body(f"How many barrels does ledger {document} list?", 4)
        if endpoint.path == "/query":
            asks |= {"temperature": 0.9}
        else:
            asks |= (
                {"temperature": 0.9, "n": count} if not endpoint.path.endswith("/responses") else {"temperature": 0.9}
            )
        last = call("DELETE", path) if deletes else call("PUT", path, text + b"More.", headers=plain)
        sent = [
            (call("PUT", path, text, headers=plain), 0.0),
            (json_call(endpoint.path, asks), 0.5),
            (last, 0.5 + moment),
        ]
        return Input(requests=tuple(Request(pieces=(Piece(content),), starts_s=at) for content, at in sent))

    return st.builds(
        scene,
        st.sampled_from(endpoints),
        st.integers(0, 30),
        st.sampled_from([2, 4, 16]),
        st.floats(0, 2.0),
        st.booleans(),
    )


def bursts(endpoints: list[Endpoint]) -> SearchStrategy[Input]:
    """The same request many times at once, with a key or without."""

    def burst(endpoint: Endpoint, count: int, caller: Caller) -> Input:
        content = json_call(endpoint.path, endpoint.body("What is listed?", 1), caller=caller)
        return Input(requests=(Request(pieces=(Piece(content),)),) * count)

    callers = st.sampled_from([Caller.STRANGER, Caller.NOBODY])
    return st.builds(burst, st.sampled_from(endpoints), st.sampled_from([2, 8, 64]), callers)
