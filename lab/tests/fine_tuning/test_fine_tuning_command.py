"""The command, on a tiny model."""

import json

import pytest
import torch
from tiny_models import llama, make_tiny_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner
from workload_files import write_lines

from examine.gate.fact_probes import fact_tasks
from protocol.errors import ConfigError
from ragtree_lab.fine_tuning import training
from services.cli.app import app


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    # The tokenizer has one token a byte, so made-up facts are long.
    config = llama()
    config.max_position_embeddings = 16_384
    folder = make_tiny_model(tmp_path / "model", config)
    monkeypatch.setenv("RAGTREE_GENERATOR__MODEL", str(folder))
    monkeypatch.setenv("RAGTREE_GENERATOR__MAX_MODEL_LEN", "16384")
    monkeypatch.setenv("RAGTREE_GENERATOR__SYSTEM_PROMPT", "Answer.")
    return str(folder)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """A random model never ends an answer."""
    monkeypatch.setattr(training, "_ANSWER_TOKENS", 4)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine take ten times as long as one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bench(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ["bench", "fine-tuning", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.fixture
def questions(tmp_path) -> str:
    """A file of questions that are about few facts."""
    file = tmp_path / "questions.jsonl"
    task = next(fact_tasks("one-hop facts", 0))
    lines = []
    for asked in task.asked:
        own = [path for path in task.paths if path.entities[0] in asked.question]
        paths = [{"entities": path.entities, "relations": path.relations} for path in own]
        lines.append({"question": asked.question, "answers": asked.answers, "paths": paths})
    file.write_text("\n".join(map(json.dumps, lines)))
    return str(file)


def test_made_up_questions_train_a_model_that_transformers_loads(tmp_path, model):
    out = tmp_path / "trained"
    options = ("--questions", "9", "--held-out", "1", "--batch", "1", "--learning-rate", "1e-3")
    record = json.loads(bench(str(out), *options, "--json"))
    assert (record["questions"], record["held_out"], record["steps"]) == (9, 1, 2)
    assert record["recipe"]["positions"] == "depth"
    assert json.loads((out / "fine_tuning.json").read_text()) == record
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "llama"


def test_a_file_trains_alone_and_the_table_has_both_kinds_of_attention(tmp_path, model, questions):
    options = ("--file", questions, "--held-out", "2", "--batch", "2", "--positions", "preorder")
    printed = bench(str(tmp_path / "trained"), *options)
    assert "in trees" in printed
    assert "in full" in printed
    record = json.loads((tmp_path / "trained" / "fine_tuning.json").read_text())
    assert (record["questions"], record["held_out"]) == (6, 2)
    assert record["recipe"]["positions"] == "preorder"


@pytest.fixture
def data(tmp_path, monkeypatch) -> str:
    """A folder with one set, whose documents state who founded which company."""
    monkeypatch.setenv("RAGTREE_RETRIEVER__EMBEDDER__KIND", "hashing")
    people = ("Conrad Miller", "Bertha Grant", "Albert Smith", "Edith Jones")
    companies = ("Acme Company", "Globex Company", "Initech Company", "Umbrella Company")
    texts = [f"{person} founded the {company}." for person, company in zip(people, companies, strict=True)]
    write_lines(tmp_path / "founders" / "docs.jsonl.gz", [{"doc_id": text, "text": text} for text in texts])
    questions = [
        {"qid": company, "question": f"Who founded the {company}?", "answers": [person], "gold_doc_ids": [text]}
        for person, company, text in zip(people, companies, texts, strict=True)
    ]
    questions.append(questions[0] | {"qid": "unstated", "answers": ["nobody"]})
    write_lines(tmp_path / "founders" / "questions.jsonl.gz", questions)
    return str(tmp_path)


def test_questions_of_a_set_train_beside_made_up_ones_and_each_source_has_its_scores(tmp_path, model, data):
    options = ("--set", "founders", "--set-questions", "3", "--questions", "2", "--held-out", "1", "--batch", "2")
    record = json.loads(bench(str(tmp_path / "trained"), *options, "--data", data, "--json"))
    assert list(record["sources"]) == ["made up", "founders"]
    counts = {name: (own["questions"], own["held_out"], own["left_out"]) for name, own in record["sources"].items()}
    assert counts == {"made up": (2, 1, 0), "founders": (3, 1, 1)}
    assert (record["questions"], record["held_out"]) == (5, 2)
    for own in record["sources"].values():
        assert own["before"].keys() == own["after"].keys() == {"dependency", "self_attention"}
        assert own["after"]["dependency"].keys() == {"loss", "exact", "f1"}


def test_a_set_that_is_unknown_or_a_folder_that_exists_is_refused_before_anything_is_read(tmp_path, model, data):
    with pytest.raises(ConfigError, match=r"no set losers at .*; the sets are founders"):
        bench(str(tmp_path / "trained"), "--set", "losers", "--data", data)
    with pytest.raises(ConfigError, match="exists already"):
        bench(model, "--set", "founders", "--data", data)
    assert not (tmp_path / "trained").exists()


def test_bad_input_is_refused(tmp_path, model, questions):
    with pytest.raises(ConfigError, match="exists already"):
        bench(model, "--file", questions, "--held-out", "2")
    with pytest.raises(ConfigError, match="no question to train on"):
        bench(str(tmp_path / "out"), "--questions", "0")
    with pytest.raises(ConfigError, match="no question to train on"):
        bench(str(tmp_path / "out"), "--file", questions, "--held-out", "8")
