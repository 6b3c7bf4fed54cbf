"""A replay's questions in the simulator: the same documents and lengths as in the prompts."""

import pytest

from protocol.errors import ConfigError
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.workloads.retrieved_prompts import AskedQuestion
from ragtree_lab.workloads.stream_workload import StreamWorkload

ASKED = [AskedQuestion("a", (1, 2)), AskedQuestion("bcd", (2, 1)), AskedQuestion("e", (1, 2))]


class Prompts:
    def prompt(self, asked):
        documents = [Segment(SegmentKind.DOCUMENT, str(number), (1,) * 10 * number) for number in asked.documents]
        question = Segment(SegmentKind.QUESTION, asked.question, (1,) * len(asked.question))
        return Prompt((Segment(SegmentKind.SYSTEM, "system", (1,) * 5), *documents, question))


def test_requests_have_the_documents_and_lengths_of_the_prompts():
    workload = StreamWorkload("tales", Prompts(), ASKED, 2.0, 0)
    requests = list(workload.requests())
    assert workload.length == len(requests) == 3
    assert [[tuple(document) for document in request.documents] for request in requests] == [
        [("1", 10), ("2", 20)],
        [("2", 20), ("1", 10)],
        [("1", 10), ("2", 20)],
    ]
    assert [request.question_tokens for request in requests] == [1, 3, 1]
    assert {(request.system_id, request.system_tokens) for request in requests} == {("system", 5)}


def test_arrivals_have_the_mean_rate_and_repeat():
    workload = StreamWorkload("tales", Prompts(), ASKED * 400, 2.0, 0)
    times = [request.arrival_s for request in workload.requests()]
    assert times == sorted(times) == [request.arrival_s for request in workload.requests()]
    assert times[-1] == pytest.approx(1200 / 2.0, rel=0.1)


def test_an_invalid_rate_is_refused():
    with pytest.raises(ConfigError):
        StreamWorkload("tales", Prompts(), ASKED, 0.0, 0)
