"""The report of a folder of handmade records has exact figures."""

import json
import struct

import pytest

from loadtest.report import write_report
from loadtest.reporting.plots import PLOTS
from loadtest.reporting.request_records import (
    FILE_NAME,
    Outcome,
    QueryRecord,
    RecordFile,
    WriteAction,
    WriteRecord,
    read_records,
)
from loadtest.reporting.run_facts import Machine, RunFacts, StepFacts
from loadtest.settings import LoadSettings

FACTS = RunFacts(
    url="http://stack.example",
    model="a-model",
    started_at="2026-01-02T03:04:05+00:00",
    command="locust -f loadtest/locustfile.py",
    machine=Machine("Linux", "3.11.0", "a processor", 2, 2**33),
    settings=LoadSettings(schedule="1:10,1:10", slo_ttft=0.5, slo_itl=0.1, seed=42),
    collection="c",
    steps=(StepFacts("1:10", 0.0, 10.0), StepFacts("1:10", 10.0, 10.0)),
    seconds=20.0,
)


def answered(number, at, ttft, itl, cached):
    return QueryRecord(
        number=number,
        at=at,
        query="q",
        outcome=Outcome.ANSWERED,
        sent=at + 0.001,
        ended=at + 2.0,
        status=200,
        ttfr=ttft / 2,
        ttft=ttft,
        e2e=2.0,
        itl=itl,
        prompt_tokens=100,
        cached_tokens=cached,
        completion_tokens=3,
    )


def other(number, at, outcome, **more):
    return QueryRecord(number=number, at=at, query="q", outcome=outcome, **more)


RECORDS = [
    answered(0, 0.0, 0.1, [0.05, 0.05], 0),
    answered(1, 1.0, 0.2, [0.05, 0.1], 50),
    # One has slow tokens, one a late first token, and one is just within the objectives.
    answered(2, 2.0, 0.3, [0.1, 0.15], 50),
    answered(3, 3.0, 0.6, [0.05], 100),
    answered(4, 12.0, 0.5, [0.1], 100),
    other(5, 13.0, Outcome.REFUSED, sent=13.0, ended=13.1, status=429, reason="rate_limited"),
    other(6, 14.0, Outcome.REFUSED, sent=14.0, ended=14.1, status=503, reason="overloaded"),
    other(7, 15.0, Outcome.REFUSED, sent=15.0, ended=15.1, status=503, reason="overloaded"),
    other(8, 16.0, Outcome.FAILED, sent=16.0, ended=25.0, status=200, reason="no terminal event", ttft=9.0),
    other(9, 17.0, Outcome.MISSED),
    other(10, 18.0, Outcome.DISCONNECTED, sent=18.0, ended=18.5, status=200, ttft=0.2),
    other(11, 19.0, Outcome.UNFINISHED, sent=19.0, ended=20.0),
    WriteRecord(action=WriteAction.INGEST, at=1.0, document_id="d", outcome=Outcome.ANSWERED, ended=1.25, status=202),
    WriteRecord(action=WriteAction.DELETE, at=2.0, document_id="d", outcome=Outcome.REFUSED, status=503, reason="busy"),
]


@pytest.fixture
def folder(tmp_path):
    FACTS.write(tmp_path)
    file = RecordFile(tmp_path)
    for record in RECORDS:
        file.add(record)
    file.close()
    return tmp_path


@pytest.fixture
def results(folder):
    write_report(folder)
    return json.loads((folder / "results.json").read_text())


def test_records_round_trip(folder):
    assert read_records(folder) == RECORDS


def test_incomplete_last_line_is_dropped(folder):
    raw = (folder / FILE_NAME).read_bytes()
    (folder / FILE_NAME).write_bytes(raw[:-5])
    assert read_records(folder) == RECORDS[:-1]


def test_a_run_whose_traffic_has_not_started_has_no_records(tmp_path):
    assert read_records(tmp_path) == []


def test_latencies_are_of_answered_requests(results):
    total = results["total"]
    assert total["ttft"] == pytest.approx(
        {"count": 5, "mean": 0.34, "p50": 0.3, "p90": 0.56, "p95": 0.58, "p99": 0.596, "max": 0.6}
    )
    assert total["ttfr"]["p50"] == pytest.approx(0.15)
    assert total["itl"]["count"] == 8
    assert total["itl"]["p50"] == pytest.approx(0.075)
    assert total["itl"]["max"] == pytest.approx(0.15)
    assert total["e2e"]["p99"] == 2.0
    assert total["late"]["max"] == pytest.approx(0.001)


def test_all_arrivals_are_counted(results):
    total = results["total"]
    assert total["arrivals"] == 12
    assert total["outcomes"] == {
        "answered": 5,
        "refused": 3,
        "failed": 1,
        "missed": 1,
        "disconnected": 1,
        "unfinished": 1,
    }
    assert total["refusals"] == {"503 overloaded": 2, "429 rate_limited": 1}
    assert total["errors"] == {"no terminal event": 1}


def test_goodput_excludes_disconnected_requests(results):
    total = results["total"]
    assert total["good"] == 3
    assert total["good_share"] == pytest.approx(3 / 10)
    assert total["seconds"] == 25.0
    assert total["good_per_s"] == pytest.approx(3 / 25)
    assert total["answered_per_s"] == pytest.approx(5 / 25)
    assert total["output_tokens_per_s"] == pytest.approx(15 / 25)


def test_hit_rate_counts_tokens(results):
    assert results["total"]["hit_rate"] == pytest.approx(300 / 500)


def test_each_step_has_its_own_figures(results):
    first, second = results["steps"]
    assert (first["step"]["schedule"], first["summary"]["arrivals"], second["summary"]["arrivals"]) == ("1:10", 4, 8)
    assert first["summary"]["good_share"] == pytest.approx(2 / 4)
    assert second["summary"]["good_share"] == pytest.approx(1 / 6)
    assert first["summary"]["answered_per_s"] == pytest.approx(0.4)


def test_writes_are_counted_separately(results):
    writes = results["writes"]
    assert writes["ingest"]["seconds"]["p50"] == pytest.approx(0.25)
    assert writes["delete"]["refusals"] == {"503 busy": 1}
    assert writes["delete"]["seconds"] is None


def test_results_contain_the_run_facts(results):
    run = results["run"]
    assert run["command"] == "locust -f loadtest/locustfile.py"
    assert run["settings"]["seed"] == 42
    assert run["machine"]["processor"] == "a processor"


def test_markdown_report_has_the_same_figures(folder, results):
    text = (folder / "report.md").read_text()
    assert "| TTFT: first text | 300.0 | 560.0 | 580.0 | 596.0 | 600.0 | 340.0 | 5 |" in text
    assert "30.0% of the requests" in text
    assert "| 503 overloaded | 2 |" in text
    assert "**1 requests were never sent**" in text
    assert "| `seed` | 42 |" in text
    assert all(f"({plot})" in text for plot in PLOTS)


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_are_drawn(folder, results, plot):
    raw = (folder / plot).read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert struct.unpack(">II", raw[16:24]) == (960, 480)


def test_run_without_requests_has_a_report(tmp_path):
    FACTS.write(tmp_path)
    RecordFile(tmp_path).close()
    results = write_report(tmp_path)
    assert results.total.arrivals == 0
    assert results.total.hit_rate is None
    assert "0 requests were due" in (tmp_path / "report.md").read_text()
