"""The command, on a tiny model."""

import json

import pytest
import torch
from tiny_models import llama, make_tiny_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from benchmarks.gate.fact_probes import fact_tasks
from protocol.errors import ConfigError
from services.cli import app


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


def test_bad_input_is_refused(tmp_path, model, questions):
    with pytest.raises(ConfigError, match="exists already"):
        bench(model, "--file", questions, "--held-out", "2")
    with pytest.raises(ConfigError, match="no question to train on"):
        bench(str(tmp_path / "out"), "--questions", "0")
    with pytest.raises(ConfigError, match="no question to train on"):
        bench(str(tmp_path / "out"), "--file", questions, "--held-out", "8")
