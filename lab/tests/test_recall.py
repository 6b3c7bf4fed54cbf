"""Recall is measured against exact search, independent of the saved index."""

import asyncio
import random

import msgspec
import numpy as np
import pytest
from varied import varied
from workload_files import write_lines

from protocol.errors import ConfigError
from protocol.retrieval import SearchKind
from ragtree_lab.recall import RecallBenchmark
from ragtree_lab.workloads.datasets import Dataset
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import HashingSettings, IndexSettings, RetrieverSettings

# The search probes one of a hundred lists, so it misses most neighbours.
POOR = varied(IndexSettings, ivf_threshold=64, probe_share=0.01, min_probes=1)
SETTINGS = varied(RetrieverSettings, embedder=HashingSettings(), index=POOR, group_documents=64)
WORDS = [f"word{number}" for number in range(300)]


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    """Texts of random words, and questions of three words from a text, which is not always the nearest one.

    The words of a text have different frequencies, so no two texts are equally near to a question.
    """
    draws = random.Random(0)
    texts = {
        f"d{number}": [word for word in draws.sample(WORDS, 8) for _ in range(draws.randint(1, 20))]
        for number in range(800)
    }
    documents = [{"doc_id": key, "text": " ".join(words)} for key, words in texts.items()]
    questions = [
        {"qid": key, "question": " ".join(draws.sample(sorted(set(texts[key])), 3)), "gold_doc_ids": [key]}
        for key in draws.sample(sorted(texts), 200)
    ]
    root = tmp_path_factory.mktemp("data")
    write_lines(root / "tales" / "docs.jsonl.gz", documents)
    write_lines(root / "tales" / "questions.jsonl.gz", questions)
    return Dataset(root, "tales")


def recall(dataset, folder, progress=lambda *step: None, sample=10_000):
    return asyncio.run(RecallBenchmark(SETTINGS, folder, list(SearchKind), progress).run(dataset, sample, seed=0))


def test_exact_recall_uses_all_inner_products_despite_a_saved_index(tales, tmp_path):
    embedder = HashingEmbedder()
    documents, questions = list(tales.documents()), list(tales.questions())
    vectors = embedder.embed_documents([document.text for document in documents])
    found = 0
    for question in questions:
        nearest = np.argsort(-(vectors @ embedder.embed_query(question.question)))[:5]
        found += any(documents[place].doc_id in question.gold_doc_ids for place in nearest)
    truth = found / len(questions)

    for result in (recall(tales, tmp_path), recall(tales, tmp_path)):
        assert (result.documents, result.questions) == (len(documents), len(questions))
        recall_of = result.recall_at_5
        assert recall_of.exact == truth
        assert recall_of.dense < truth - 0.1
        # Three words of a text find it, which an index of few probes does not.
        assert recall_of.sparse == 1
        assert recall_of.hybrid > recall_of.dense
        # Where ingestion is slower, the index is trained on other texts. So hybrid search may find all texts, too, but
        # it ranks them lower than sparse search does.
        gain_of = result.ndcg_at_10
        assert gain_of.sparse > gain_of.hybrid > gain_of.dense
        assert all(0 < gain < 1 for gain in msgspec.structs.astuple(gain_of))
        assert list((tmp_path / "indexes").iterdir())


def test_both_searches_get_the_sample_and_progress_reports_each_step(tales, tmp_path):
    reported = {}
    result = recall(tales, tmp_path, lambda step, done, total: reported.update({step: (done, total)}), sample=20)
    assert result.questions == 20
    assert reported == {"ingesting": (800, 800), "searching": (20, 20)}


def test_set_without_answers_has_no_recall(tales, tmp_path):
    write_lines(tmp_path / "lone" / "docs.jsonl.gz", [{"doc_id": "1", "text": "Much is told."}])
    write_lines(tmp_path / "lone" / "questions.jsonl.gz", [{"qid": "1", "question": "What is told?"}])
    with pytest.raises(ConfigError, match="names the documents"):
        recall(Dataset(tmp_path, "lone"), tmp_path / "cache")
