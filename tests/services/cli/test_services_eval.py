"""``ragtree eval`` on a scripted stack: its files, output, exit codes, and what an interruption keeps."""

import json
import signal

import pytest
from scripted_stack import ScriptedStack, reply, stream
from typer.testing import CliRunner

from protocol.errors import ConfigError, Overloaded
from services.cli.app import app
from services.client import NotReady, StackUnreachable

LINES = [
    {"question": "right?", "answers": ["yes"], "document_ids": ["a"]},
    {"question": "wrong?", "answers": ["no"], "document_ids": ["b"]},
    {"question": "fails?", "answers": ["no"]},
]


def script(body):
    if body["query"] == "fails?":
        raise Overloaded("the queue is full")
    return stream(reply("yes", ["a", "x"], cached=40))


@pytest.fixture
def stack(monkeypatch):
    stack = ScriptedStack(script)
    monkeypatch.setattr("services.cli.evaluate.connect", lambda url, api_key: stack)
    monkeypatch.setenv("COLUMNS", "160")
    return stack


@pytest.fixture
def dataset(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    return file


def evaluate(dataset, *arguments: str):
    return CliRunner().invoke(app, ["eval", "--dataset", str(dataset), *arguments])


def rows_of(table: str) -> dict[str, str]:
    """The cells behind each figure's name, which has no two spaces."""
    return {
        name: cells.strip()
        for line in table.splitlines()
        if (found := line.partition("  "))[1]
        for name, _, cells in [found]
    }


def test_a_table_shows_the_figures_and_failures_are_listed(stack, dataset):
    ran = evaluate(dataset, "--collection", "c", "--top-k", "2", "--search", "hybrid", "--max-tokens", "9")
    assert ran.exit_code == 0, ran.output
    rows = rows_of(ran.stdout)
    assert rows["recall@2"].startswith("0.500")
    assert rows["exact match"].startswith("0.500")
    assert rows["prompt tokens, cached"] == "40.0%"
    assert rows["failed"] == "1"
    assert "line 3 (as configured): the queue is full" in ran.stderr
    shared = {"collection": "c", "top_k": 2, "search": "hybrid", "max_tokens": 9}
    assert stack.bodies[0] == {**shared, "query": "right?"}


def test_both_modes_are_compared_and_everything_is_in_the_folder(stack, dataset, tmp_path):
    folder = tmp_path / "report"
    ran = evaluate(dataset, "--reuse", "both", "--report", str(folder), "--limit", "2", "--json")
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told == json.loads((folder / "report.json").read_text())
    assert told["complete"]
    assert told["differences"]["f1"] == {"value": 0.0, "low": 0.0, "high": 0.0, "questions": 2}
    assert [body["reuse"] for body in stack.bodies] == ["composed", "exact"] * 2
    assert {file.name for file in folder.iterdir()} == {"report.json", "report.md", "answers.jsonl", "evaluation.png"}
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 4


def test_what_was_measured_is_kept_if_the_cache_cannot_be_cleared_again(stack, dataset, tmp_path):
    clears = []

    def clear_cache():
        clears.append(len(stack.bodies))
        if len(clears) == 2:
            raise Overloaded("no controller")

    stack.clear_cache = clear_cache
    ran = evaluate(dataset, "--reuse", "both", "--clear-cache", "--limit", "2", "--report", str(tmp_path / "report"))
    assert isinstance(ran.exception, Overloaded)
    assert clears == [0, 2]
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["complete"], report["asked"]["cleared"]) == (False, True)
    assert (report["modes"]["composed"]["answered"], report["modes"]["exact"]["asked"]) == (2, 0)


@pytest.mark.parametrize("reuse", ["exact", "auto"])
def test_one_mode_is_asked_for(stack, dataset, reuse):
    assert evaluate(dataset, "--reuse", reuse).exit_code == 0
    assert {body["reuse"] for body in stack.bodies} == {reuse}


def test_the_exit_code_is_1_if_nothing_was_answered(stack, dataset, tmp_path):
    dataset.write_text(json.dumps(LINES[2]))
    ran = evaluate(dataset, "--report", str(tmp_path / "report"))
    assert ran.exit_code == 1
    assert ran.exception.code == 1
    assert json.loads((tmp_path / "report" / "report.json").read_text())["failures"][0]["line"] == 1
    assert (tmp_path / "report" / "report.md").exists()


def test_what_is_wrong_is_said_before_anything_is_asked(stack, dataset, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "old.md").touch()
    refused = evaluate(dataset, "--report", str(tmp_path / "full")).exception
    assert isinstance(refused, ConfigError)
    assert "--report" in refused.message
    stack.readiness = lambda: NotReady("the model is loading", final=False)
    unready = evaluate(dataset).exception
    assert isinstance(unready, StackUnreachable)
    assert "the model is loading" in unready.message
    dataset.write_text('{"question": "x"}\n{"query": "x"}')
    wrong = evaluate(dataset).exception
    assert isinstance(wrong, ConfigError)
    assert "line 2" in wrong.message
    assert stack.bodies == []


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request):
    """A signal that is not ignored, as it would be below ``nohup``."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


def test_an_interrupted_evaluation_keeps_what_was_measured(stack, dataset, tmp_path, monkeypatch, number):
    folder = tmp_path / "report"

    def interrupt_after_two(_self, _step, done, _total):
        if done == 2:
            signal.raise_signal(number)

    def draw(report, rows, file):
        # A wrapper has forwarded the same signal.
        signal.raise_signal(number)
        file.write_bytes(b"drawn")

    monkeypatch.setattr("services.cli.output.StepBars.__call__", interrupt_after_two)
    monkeypatch.setattr("examine.evaluation.plot.draw", draw)
    ran = evaluate(dataset, "--report", str(folder))
    assert ran.exit_code == 128 + number
    report = json.loads((folder / "report.json").read_text())
    assert not report["complete"]
    assert report["modes"]["as configured"]["answered"] == 2
    assert (folder / "evaluation.png").read_bytes() == b"drawn"
    assert "**Interrupted**" in (folder / "report.md").read_text()
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 2
