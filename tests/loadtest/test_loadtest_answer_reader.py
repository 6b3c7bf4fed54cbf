"""Reading one answer: latencies count from its due time, and it has exactly one end."""

import json

import pytest

from loadtest.client.answer_reader import AnswerReader


def event(name, **body):
    return f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n".encode()


COMPLETED = event("query.completed", query_id="q1", usage={"prompt_tokens": 7})
DELTA = event("output_text.delta", delta="a")
RETRIEVED = event("retrieval.completed")


def answer(*timed):
    """Read these bytes at these times. The answer is due at 10."""
    heard = []
    read = AnswerReader(10.0, lambda latency, seconds: heard.append((str(latency), seconds)))
    for now, chunk in timed:
        read.feed(chunk, now)
    return read, heard


def test_latencies_count_from_the_due_time():
    frames = [(11, RETRIEVED), (12, event("output_text.delta", delta="")), (13, DELTA), (15, DELTA), (18, DELTA)]
    read, heard = answer(*frames, (20, COMPLETED))
    assert heard == [("TTFR", 1.0), ("TTFT", 3.0), ("ITL", 2.0), ("ITL", 3.0)]
    assert (read.ttfr, read.ttft, read.itl, read.e2e) == (1.0, 3.0, [2.0, 3.0], 10.0)
    assert read.failure() is None
    assert read.query_id == "q1"
    assert read.usage == {"prompt_tokens": 7}


@pytest.mark.parametrize(
    ("frames", "failure"),
    [
        ([DELTA], "no terminal event"),
        ([], "no terminal event"),
        ([COMPLETED, COMPLETED], "2 terminal events"),
        ([COMPLETED, event("query.failed", error={"code": "x"})], "2 terminal events"),
        ([event("query.failed", error={"code": "engine_died"})], "query.failed: engine_died"),
        ([event("query.failed")], "query.failed: None"),
        ([event("query.incomplete", reason="timeout")], "query.incomplete: timeout"),
        ([COMPLETED, DELTA], "output_text.delta after the terminal event"),
        ([b"event: query.completed\ndata: {\n\n"], "an event whose body does not match its name: query.completed"),
        ([b"event: query.completed\ndata: [1]\n\n"], "an event whose body does not match its name: query.completed"),
        ([COMPLETED[:-1]], "no terminal event"),
    ],
)
def test_anything_but_one_good_end_is_a_failure(frames, failure):
    read, _ = answer(*((11, chunk) for chunk in frames))
    assert read.failure() == failure


def test_text_and_sources_are_collected():
    found = event("retrieval.completed", results=[{"document_id": "b"}, {"document_id": "a"}])
    cited = event("output_text.annotation.added", annotation={"document_id": "b"})
    more = event("output_text.delta", delta="né")
    read, _ = answer((11, found), (12, cited), (13, DELTA), (14, more), (15, COMPLETED))
    assert (read.text, read.sources, read.cited, read.terminals) == ("ané", ["b", "a"], ["b"], 1)


@pytest.mark.parametrize("results", [None, "b", [{}], ["b"]])
def test_malformed_sources_are_ignored(results):
    read, _ = answer((11, event("retrieval.completed", results=results)))
    assert read.sources == []
    assert read.ttfr == 1.0


def test_has_reached_counts_pieces_of_text():
    read, _ = answer((11, DELTA))
    assert not read.has_reached(0)
    read, _ = answer((11, RETRIEVED))
    assert read.has_reached(0)
    assert not read.has_reached(1)
    read, _ = answer((11, RETRIEVED + DELTA))
    assert read.has_reached(1)
    read, _ = answer((11, RETRIEVED + DELTA + COMPLETED))
    assert not read.has_reached(1)
