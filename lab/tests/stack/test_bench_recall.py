"""``ragtree bench recall`` on a synthetic question set prints one JSON object with the right recall."""

import gzip
import json

import pytest
from stacks import HASHING, command

WORDS = ["amber", "basalt", "cedar", "dune", "ember", "fjord", "glade", "heath", "islet", "jetty", "knoll", "lagoon"]


def write_lines(path, rows):
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_recall_is_measured_against_exact_search(tmp_path):
    (tmp_path / "made-up").mkdir()
    pairs = [(first, second) for first in WORDS for second in WORDS if first < second]
    texts = {f"{first}-{second}": f"The {first} lies behind the {second}." for first, second in pairs}
    write_lines(tmp_path / "made-up" / "docs.jsonl.gz", [{"doc_id": key, "text": text} for key, text in texts.items()])
    questions = [
        {"qid": key, "question": f"What about {key.replace('-', ' and ')}?", "gold_doc_ids": [key]} for key in texts
    ]
    # A question without an answer: it must lower recall.
    questions.append({"qid": "lost", "question": "amber basalt", "gold_doc_ids": ["nowhere"]})
    write_lines(tmp_path / "made-up" / "questions.jsonl.gz", questions)
    environment = {
        **HASHING,
        "RAGTREE_CACHE_DIR": str(tmp_path / "cache"),
        "RAGTREE_RETRIEVER__INDEX__KIND": "ivf",
    }
    asked = ["bench", "recall", "--dataset", "made-up", "--data", ".", "--json"]
    ran = command(*asked, cwd=tmp_path, **environment)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert (result["documents"], result["questions"]) == (len(pairs), len(pairs) + 1)
    recall = result["recall_at_5"]
    assert set(recall) == {"dense", "sparse", "hybrid", "exact"}
    assert recall["exact"] == pytest.approx(len(pairs) / (len(pairs) + 1))
    assert recall["sparse"] == pytest.approx(recall["exact"])
    assert 0.9 < recall["dense"] <= recall["exact"]
