"""The SSE decoder returns the same events however the bytes are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.client.sse_decoder import ServerSentEvent, SseDecoder

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
ENDING = st.sampled_from(["\n", "\r", "\r\n"])
NAME = st.sampled_from(["query.created", "output_text.delta", "ß→𝄞"])


@st.composite
def streams(draw):
    """The bytes of a stream and its events."""
    written, events = "", []
    for name, data in draw(st.lists(st.tuples(NAME, st.lists(TEXT, min_size=1, max_size=3)), max_size=5)):
        lines = [f"event: {name}", *(f"data: {line}" for line in data), ": a comment", "retry: 3", "id"]
        ending = draw(ENDING)
        written += "".join(line + ending for line in [*lines, ""])
        events.append(ServerSentEvent(name, "\n".join(data)))
    return written.encode(), events


@given(streams(), st.data())
def test_any_split_gives_the_same_events(stream, data):
    raw, events = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    decoder = SseDecoder()
    parts = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert [event for part in parts for event in decoder.feed(part)] == events


@given(streams())
def test_single_bytes_give_the_same_events(stream):
    raw, events = stream
    decoder = SseDecoder()
    assert [event for byte in raw for event in decoder.feed(bytes([byte]))] == events


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\n", [("message", "a")]),
        (b"data:a\ndata: b\ndata\n\n", [("message", "a\nb\n")]),
        (b"data:  two spaces\n\n", [("message", " two spaces")]),
        (b"\xef\xbb\xbfdata: behind a mark\n\n", [("message", "behind a mark")]),
        (b"event: named\n\ndata: the name is gone\n\n", [("message", "the name is gone")]),
        (": ping\n\ndata: \u2028 is no end of a line\n\n".encode(), [("message", "\u2028 is no end of a line")]),
        (b"event: cut\ndata: off\n", []),
        (b"data: \xff\n\n", [("message", "\ufffd")]),
    ],
)
def test_decoder_follows_the_standard(raw, events):
    assert SseDecoder().feed(raw) == events


def test_event_is_returned_with_its_last_byte():
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [("message", "a")]
    assert decoder.feed(b"\ndata: b\n") == []
    assert decoder.feed(b"\n") == [("message", "b")]
