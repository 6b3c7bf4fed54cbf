"""Workloads are opened by name or path. Limits, orders and rates apply without loading them into memory."""

import math
from collections import Counter

import pytest
from workload_files import plain, write_lines

from protocol.errors import ConfigError
from ragtree_lab.workloads.by_name import open_workload
from ragtree_lab.workloads.traces import PlainTrace
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload


@pytest.fixture
def trace(tmp_path):
    rows = [plain(10.0, "c", "a", "b"), plain(11.0, "b"), plain(15.0), plain(16.0, "a", "c")]
    return PlainTrace("mine", write_lines(tmp_path / "mine.jsonl", rows, open))


class Endless(Workload):
    name = "endless"
    length = None

    def __init__(self):
        self.made = 0

    def requests(self):
        while True:
            self.made += 1
            yield TraceRequest(float(self.made), (TraceDocument("a", 1),), 1)


def ids(workload):
    return [[document.id for document in request.documents] for request in workload.requests()]


def times(workload):
    return [request.arrival_s for request in workload.requests()]


def test_workload_can_be_read_again(trace):
    assert list(trace.requests()) == list(trace.requests())


def test_concurrent_readings_are_independent(trace):
    one, other = trace.requests(), trace.requests()
    assert next(one) == next(other)
    assert next(one) == next(other)


def test_top_k_keeps_the_first_documents(trace):
    assert ids(trace.top_k(2)) == [["c", "a"], ["b"], [], ["a", "c"]]


def test_limit_reads_only_the_first_requests():
    endless = Endless()
    assert len(list(endless.limit(3).requests())) == 3
    assert endless.made == 3


def test_length_follows_the_limit(trace):
    assert trace.length == 4
    assert trace.limit(3).length == 3
    assert trace.limit(9).top_k(1).length == 4
    assert Endless().limit(3).length is None


def test_new_rate_scales_every_gap_equally(trace):
    assert times(trace.at_rate(1.0)) == pytest.approx([0.0, 0.5, 2.5, 3.0])
    assert times(trace.at_rate(1.0)) == times(trace.at_rate(1.0))


def test_rate_applies_to_the_limited_workload(trace):
    assert times(trace.limit(2).at_rate(4.0)) == pytest.approx([0.0, 0.25])


def test_single_request_arrives_at_time_0_at_any_rate(trace):
    assert times(trace.limit(1).at_rate(2.0)) == [0.0]


def test_simultaneous_arrivals_cannot_have_a_rate(tmp_path):
    trace = PlainTrace("mine", write_lines(tmp_path / "mine.jsonl", [plain(1.0, "a")] * 3))
    with pytest.raises(ConfigError, match="arrive at once"):
        list(trace.at_rate(1.0).requests())


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_rate_must_be_a_positive_number(trace, rate):
    with pytest.raises(ConfigError, match="rate"):
        trace.at_rate(rate)


def test_requests_and_top_k_must_be_positive(trace):
    with pytest.raises(ConfigError, match="top_k"):
        trace.top_k(0)
    with pytest.raises(ConfigError, match="number of requests"):
        trace.limit(0)


def test_derived_workload_keeps_its_name(trace):
    assert trace.top_k(1).at_rate(1.0).limit(1).name == "mine"


def test_path_is_opened_as_a_trace_and_options_apply(tmp_path):
    file = write_lines(tmp_path / "mine.jsonl.gz", [plain(10.0 * n, "b", "a") for n in range(5)])
    workload = open_workload(str(file), tmp_path, 0, requests=3, top_k=1, rate=2.0)
    assert workload.name == "mine.jsonl.gz"
    assert ids(workload) == [["b"]] * 3
    assert times(workload) == pytest.approx([0.0, 0.5, 1.0])


def test_named_traces_are_below_the_data_folder(tmp_path):
    line = {"t": 0, "input_len": 600, "output_len": 1, "hash_ids": [0, 1]}
    write_lines(tmp_path / "trace_mooncake_synthetic" / "requests.jsonl.gz", [line])
    assert len(list(open_workload("mooncake", tmp_path, 0).requests())) == 1


def test_generated_workloads_have_the_requested_size(tmp_path):
    workload = open_workload("zipf", tmp_path, 0, requests=50, rate=10.0, top_k=2, documents=30, mean_tokens=100.0)
    requests = list(workload.requests())
    assert len(requests) == workload.length == 50
    assert Counter(len(request.documents) for request in requests) == {2: 50}


def test_unknown_name_is_refused_with_the_known_ones(tmp_path):
    for folder in ("whole", "lone"):
        write_lines(tmp_path / folder / "questions.jsonl.gz", [{"qid": "1", "question": "Why?"}])
    for folder in ("whole", "corpus"):
        write_lines(tmp_path / folder / "docs.jsonl.gz", [{"doc_id": "1", "text": "So."}])
    with pytest.raises(ConfigError) as caught:
        open_workload("zipfian", tmp_path, 0)
    names = "ragpulse, mooncake, zipf, temporal, uniform, lone@CORPUS, whole, QUESTIONS@corpus"
    assert "'zipfian'" in str(caught.value)
    assert names in str(caught.value)


@pytest.mark.parametrize("name", ["ragpulse", "lone", "lone@nowhere", "nowhere.jsonl", ""])
def test_missing_trace_is_refused(tmp_path, name):
    write_lines(tmp_path / "lone" / "questions.jsonl.gz", [{"qid": "1", "question": "Why?"}])
    with pytest.raises(ConfigError):
        open_workload(name, tmp_path, 0)


def test_a_question_set_needs_a_cache_folder(tmp_path):
    write_lines(tmp_path / "set" / "questions.jsonl.gz", [{"qid": "1", "question": "Why?"}])
    write_lines(tmp_path / "set" / "docs.jsonl.gz", [{"doc_id": "1", "text": "So."}])
    with pytest.raises(ConfigError, match="cache folder"):
        open_workload("set", tmp_path, 0)
