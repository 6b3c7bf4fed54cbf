"""Traces as prompts: equal passages are equal texts, lengths and arrival patterns are the trace's own."""

import pytest

from protocol.errors import ConfigError
from protocol.prompts import SegmentKind
from ragtree_lab.workloads.trace_stream import TextPool, TraceStream
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload

A, B, LONG = TraceDocument("a", 30), TraceDocument("b", 20), TraceDocument("long", 400)
REQUESTS = [
    TraceRequest(100.0, (A, B), 7, system_tokens=10, system_id="s"),
    TraceRequest(101.0, (LONG,), 7, system_tokens=10, system_id="s"),
    TraceRequest(103.0, (B, A), 0, system_tokens=0),
    TraceRequest(110.0, (A, B), 9, system_tokens=10, system_id="s"),
]


class ListedTrace(Workload):
    name = "listed"

    def __init__(self, requests):
        self._requests = requests

    @property
    def length(self):
        return len(self._requests)

    def requests(self):
        return iter(self._requests)


@pytest.fixture
def stream():
    return TraceStream(ListedTrace(REQUESTS), TextPool(range(1000)), most_tokens=300)


def test_prompts_have_the_traces_lengths_and_order(stream):
    first, second, third = stream.take(3)
    assert [len(segment.token_ids) for segment in first.segments] == [10, 30, 20, 7]
    assert [segment.kind for segment in first.segments] == [
        SegmentKind.SYSTEM, SegmentKind.DOCUMENT, SegmentKind.DOCUMENT, SegmentKind.QUESTION,
    ]  # fmt: skip
    # No system prompt, and a question of at least one token.
    assert [len(segment.token_ids) for segment in second.segments] == [20, 30, 1]
    assert third.token_count == 69


def test_equal_passages_are_equal_texts_wherever_they_are(stream):
    first, second, third = stream.take(3)
    assert first.documents == third.documents
    assert first.documents == second.documents[::-1]
    assert first.segments[0] == third.segments[0]
    assert first.segments[-1] != third.segments[-1]
    assert first.documents[0].token_ids != first.documents[1].token_ids[:30]


def test_requests_that_are_too_long_are_left_out(stream):
    stream.take(3)
    with pytest.raises(ConfigError, match="trace listed has ended"):
        stream.take(1)


def test_document_tokens_count_equal_prefixes_once(stream):
    # The system prompt, A and B behind it, and B and A on their own.
    assert stream.document_tokens == 10 + 30 + 20 + 20 + 30


def test_arrivals_keep_their_pattern_at_any_rate():
    slow, fast = (
        [arrival.at_s for arrival in TraceStream(ListedTrace(REQUESTS), TextPool(range(1000)), 300).arrivals(rate, 3)]
        for rate in (0.5, 5.0)
    )
    assert slow[-1] == pytest.approx(3 / 0.5)
    assert (slow[1] - slow[0]) / (slow[2] - slow[1]) == pytest.approx(3 / 7)
    assert slow == pytest.approx([10 * at for at in fast])


def test_arrivals_that_cannot_be_scaled_are_refused():
    at_once = [REQUESTS[0]._replace(arrival_s=1.0)] * 3
    with pytest.raises(ConfigError, match="arrive at once"):
        TraceStream(ListedTrace(at_once), TextPool(range(1000)), 300).arrivals(1.0, 3)


def test_too_little_text_is_refused():
    with pytest.raises(ConfigError, match="30 tokens does not fit into the 25"):
        TraceStream(ListedTrace(REQUESTS), TextPool(range(25)), 300).take(1)
