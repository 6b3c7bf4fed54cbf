"""The real Locust user measures when frames arrive, against a server that sends them at fixed times."""

from statistics import median

import pytest
from loadtest_runs import begin, end, trace
from slow_frame_server import DELTAS, FIRST_S, GAP_S, LAST_S, RETRIEVED_S, SlowFrameServer

from loadtest.reporting.request_records import Outcome

PLAIN = 12
SPECIAL = ("unchunked", "unended", "ends twice", "fails", "incomplete", "goes on", "429", "503", "bare")
LATE_S = 0.04
"""Tolerance for a busy machine, in the median. A client that buffers would be late by hundreds of milliseconds."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timing")
    lines = [(0.12 * number, "plain") for number in range(PLAIN)]
    lines += [(0.12 * PLAIN + 0.05 * number, question) for number, question in enumerate(SPECIAL)]
    with SlowFrameServer() as server:
        ran = end(begin(folder, server.url, "--trace", trace(folder, *lines)), folder)
    assert server.reused == 0
    return ran


@pytest.fixture(scope="module")
def plain(ran):
    records = [record for record in ran.queries if record.query == "plain"]
    assert [record.outcome for record in records] == [Outcome.ANSWERED] * PLAIN
    return records


def only(ran, question):
    (record,) = (record for record in ran.queries if record.query == question)
    return record


@pytest.mark.parametrize(("latency", "due"), [("ttfr", RETRIEVED_S), ("ttft", FIRST_S), ("e2e", LAST_S)])
def test_latencies_match_the_frames(plain, latency, due):
    measured = [getattr(record, latency) for record in plain]
    assert min(measured) >= due
    assert median(measured) < due + LATE_S


def test_itl_is_the_gap_between_pieces_of_text(plain):
    assert {len(record.itl) for record in plain} == {DELTAS - 1}
    for place in range(DELTAS - 1):
        gaps = [record.itl[place] for record in plain]
        assert median(gaps) == pytest.approx(GAP_S, abs=0.01)


def test_stream_without_chunked_encoding_is_measured_in_time(ran):
    record = only(ran, "unchunked")
    assert record.outcome is Outcome.ANSWERED
    assert record.ttft == pytest.approx(FIRST_S, abs=5 * LATE_S)
    assert len(record.itl) == DELTAS - 1


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("unended", "no terminal event"),
        ("ends twice", "2 terminal events"),
        ("fails", "query.failed: engine_died"),
        ("incomplete", "query.incomplete: timeout"),
        ("goes on", "output_text.delta after the terminal event"),
        ("bare", "HTTP 503 not_ready"),
    ],
)
def test_improper_end_is_a_failure(ran, question, reason):
    record = only(ran, question)
    assert (record.outcome, record.reason) == (Outcome.FAILED, reason)
    assert ran.results["total"]["errors"][reason] == 1


@pytest.mark.parametrize(("question", "refusal"), [("429", "429 rate_limited"), ("503", "503 overloaded")])
def test_refusal_is_not_an_error(ran, question, refusal):
    assert only(ran, question).outcome is Outcome.REFUSED
    assert ran.results["total"]["refusals"][refusal] == 1
    assert ran.stats[f"refused {refusal}"]["num_requests"] == 1


def test_locust_statistics_agree(ran):
    counts = {name: ran.stats[f"SSE {name}"]["num_requests"] for name in ("TTFR", "TTFT", "ITL", "E2E")}
    streams = PLAIN + 6
    assert counts == {"TTFR": streams, "TTFT": streams, "ITL": streams * (DELTAS - 1), "E2E": PLAIN + 1}
    assert ran.stats["SSE TTFT"]["min_response_time"] >= FIRST_S * 1000
    assert ran.stats["POST /query"]["num_failures"] == 6
    assert ran.returncode == 1


def test_hit_rate_comes_from_the_usage(ran):
    assert ran.results["total"]["hit_rate"] == pytest.approx(0.6)
    assert ran.results["run"]["model"] == "slow-frames"
