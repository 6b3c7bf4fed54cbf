"""Each type of weights ingests the documents and is searched, on the shipped embedder."""

import asyncio

import pytest
from workload_files import write_lines

from protocol.errors import ConfigError
from ragtree_lab.ingestion import IngestionBenchmark
from ragtree_lab.workloads.datasets import Dataset
from retriever.settings import HashingSettings, RetrieverSettings

TOPICS = ["volcanoes", "railways", "bread", "castles", "whales", "clocks", "violins", "deserts"]


@pytest.fixture
def topics(tmp_path):
    documents = [{"doc_id": topic, "text": f"A short text on {topic}, and on nothing but {topic}."} for topic in TOPICS]
    questions = [
        {"qid": topic, "question": f"Where can I read about {topic}?", "gold_doc_ids": [topic]} for topic in TOPICS
    ]
    write_lines(tmp_path / "topics" / "docs.jsonl.gz", documents)
    write_lines(tmp_path / "topics" / "questions.jsonl.gz", questions)
    return Dataset(tmp_path, "topics")


def test_types_take_turns_and_all_find_their_documents(topics):
    steps = []
    benchmark = IngestionBenchmark(RetrieverSettings(), ["float32", "int8"], lambda *step: steps.append(step))
    result = asyncio.run(benchmark.run(topics, sample=5, rounds=2, seed=0))
    assert (result.documents, result.questions, result.rounds) == (8, 5, 2)
    assert [row.dtype for row in result.rows] == ["float32", "int8"]
    for row in result.rows:
        assert row.recall_at_5 == row.ndcg_at_10 == 1
        assert row.documents_per_s > 0
        assert row.search_p50_ms > 0
    turns = dict.fromkeys(step.partition(", ")[2] for step, _, _ in steps)
    assert list(turns) == ["float32, round 1", "int8, round 1", "int8, round 2", "float32, round 2"]


def test_unknown_type_is_refused():
    with pytest.raises(ConfigError, match="float8"):
        IngestionBenchmark(RetrieverSettings(), ["float8"], lambda *_: None)


def test_embedder_without_weights_is_refused():
    with pytest.raises(ConfigError, match="no type of weights"):
        IngestionBenchmark(RetrieverSettings(embedder=HashingSettings()), ["int8"], lambda *_: None)
