"""The published traces match their descriptions. A set without a corpus uses that of another set."""

from pathlib import Path

import pytest

from ragtree_lab.workloads.by_name import open_workload
from ragtree_lab.workloads.question_sets import QuestionSet
from retriever.settings import HashingSettings, RetrieverSettings

DATA = Path(__file__).parents[4] / "shared" / "data"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (DATA / "trace_ragpulse").is_dir(), reason="the traces are not part of the project"),
]


def repeated_prefix(requests):
    """Return the share of document tokens in prefixes that an earlier request had."""
    seen = set()
    all_tokens = repeated = 0
    for request in requests:
        path = (request.system_id,)
        for document in request.documents:
            path = hash((path, document.id))
            all_tokens += document.tokens
            repeated += document.tokens if path in seen else 0
            seen.add(path)
    return repeated / all_tokens


def test_ragpulse_matches_its_description():
    workload = open_workload("ragpulse", DATA, 0)
    requests = list(workload.requests())
    with_passages = [request for request in requests if request.documents]
    documents = [document for request in requests for document in request.documents]
    assert (workload.length, len(requests), len(with_passages)) == (4974, 4974, 3944)
    assert len({document.id for document in documents}) == 2874
    assert len(documents) / len(with_passages) == pytest.approx(5.9, abs=0.05)
    assert len({request.system_id for request in requests}) == 3
    assert requests[-1].arrival_s == pytest.approx(419_562, abs=1)


def test_mooncake_matches_its_description():
    workload = open_workload("mooncake", DATA, 0)
    requests = list(workload.requests())
    tokens = sum(document.tokens for request in requests for document in request.documents)
    assert (workload.length, len(requests)) == (3993, 3993)
    assert tokens / len(requests) == pytest.approx(15_326, abs=1)
    assert repeated_prefix(requests) == pytest.approx(0.651, abs=0.001)


def test_every_question_set_opens_by_its_name(tmp_path):
    names = QuestionSet.names(DATA)
    assert {"squad", "nq_gold", "dragonball", "musique", "mmlu@CORPUS"} <= set(names)
    for name in names:
        QuestionSet(DATA, name.replace("CORPUS", "nq_gold").replace("QUESTIONS", "mmlu"))


def test_questions_are_retrieved_from_the_corpus_of_another_set(tmp_path):
    hashing = RetrieverSettings(embedder=HashingSettings())
    options = {"requests": 50, "retriever": hashing, "cache_dir": tmp_path}
    requests = list(open_workload("mmlu@nq_gold", DATA, 0, **options).requests())
    assert len(requests) == 50
    assert all(len(request.documents) == 5 for request in requests)
    assert all(document.id.startswith("nqgold-") for request in requests for document in request.documents)
