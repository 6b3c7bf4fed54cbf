"""The figures of an evaluation, its tables, and its files."""

import json

import msgspec
import pytest
from scripted_stack import ScriptedStack, reply, stream

from examine.evaluation.asking import Asker, Mode
from examine.evaluation.evaluation import BOTH, Evaluation, EvaluationSubject, ReportFolder
from examine.evaluation.plot import draw
from examine.evaluation.question_file import AskedQuestion, NumberedQuestion
from examine.evaluation.tables import figures, notes, render

QUESTIONS = [
    NumberedQuestion(1, AskedQuestion("both", ("right",), ("a",))),
    NumberedQuestion(2, AskedQuestion("documents", (), ("a",))),
    NumberedQuestion(3, AskedQuestion("neither")),
    NumberedQuestion(4, AskedQuestion("fails | hard", ("right",), ("a",))),
]
ASKED = EvaluationSubject(
    url="http://stack",
    dataset="q.jsonl",
    sha256="0" * 64,
    started="now",
    questions=4,
    collection="c",
    top_k=5,
    search=None,
    max_tokens=None,
    concurrency=1,
    cleared=False,
)


def script(body):
    """Exact answers are right. Composed ones are wrong, and find the document at the second place."""
    if body["query"].startswith("fails") and body.get("reuse") != "exact":
        raise RuntimeError("broke | off")
    if body.get("reuse") == "composed":
        if body["query"] == "neither":
            return stream(reply("wrong", ["x", "a"], fallback="no_donor"))
        return stream(reply("wrong", ["x", "a"], composed=60, cached=20))
    return stream(reply("right", ["a"], cached=50, finish_reason="length"))


def evaluated(modes, folder=None, seen=None):
    evaluation = Evaluation(Asker(ScriptedStack(script).query, {}, 1), modes, ASKED, folder, seen or (lambda *_: None))
    evaluation.run(QUESTIONS)
    return evaluation


def test_questions_count_only_where_they_can():
    report = evaluated([Mode("as configured", None)]).report(complete=True)
    mode = report.modes["as configured"]
    assert (mode.asked, mode.answered, mode.failed, mode.cut) == (4, 3, 1, 3)
    assert mode.scores["recall"].questions == 2
    assert mode.scores["exact_match"].questions == 1
    assert (mode.tokens.cached, mode.tokens.composed, mode.tokens.computed) == (0.5, 0, 0.5)
    assert [(failure.line, failure.error) for failure in report.failures] == [(4, "RuntimeError: broke | off")]
    assert report.differences == {}
    assert report.models == ("scripted",)


def test_composed_is_compared_with_exact_over_the_questions_that_both_answered():
    report = evaluated(BOTH).report(complete=True)
    assert (report.modes["exact"].answered, report.modes["composed"].answered) == (4, 3)
    assert report.modes["exact"].scores["exact_match"].questions == 2
    assert report.modes["composed"].tokens.composed == pytest.approx(120 / 300)
    assert report.modes["composed"].reuse == {"composed": 2, "none": 1}
    lost = report.differences["exact_match"]
    assert (lost.value, lost.low, lost.high, lost.questions) == (-1, -1, -1, 1)
    assert report.differences["reciprocal_rank"].value == -0.5
    assert report.differences["ttft_ms"].questions == 3
    fallbacks, order = notes(report)
    assert fallbacks == "Why nothing was composed, in the mode composed: no_donor 1."
    assert "times are too good" in order


def test_the_table_has_a_column_for_each_mode_and_the_difference():
    report = evaluated(BOTH).report(complete=True)
    found = figures(report)
    assert found.head == ("figure", "composed", "exact", "composed − exact [95 %] of pairs")
    assert {len(row) for row in found.rows} == {4}
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["recall@5"] == ("1.000", "1.000", "+0.000 [+0.000, +0.000] of 2")
    assert rows["MRR"] == ("0.500", "1.000", "-0.500 [-0.500, -0.500] of 2")
    assert rows["exact match"] == ("0.000", "1.000", "-1.000 [-1.000, -1.000] of 1")
    assert rows["failed"] == ("1", "0", "")
    assert rows["prompts composed"] == ("2", "0", "")
    alone = {row[0]: row[1:] for row in figures(evaluated([Mode("exact", None)]).report(complete=True)).rows}
    assert alone["F1"] == ("1.000 [1.000, 1.000] of 1",)


def test_an_evaluation_without_answers_still_has_its_table():
    evaluation = evaluated([Mode("m", None)])
    evaluation.rows = [row for row in evaluation.rows if row.error is not None]
    report = evaluation.report(complete=False)
    assert report.answered == 0
    assert dict(figures(report).rows)["time to first token, p95"] == "-"
    assert "**Interrupted**" in render(report)
    assert "evaluation.png" not in render(report)


def test_rows_are_kept_as_they_come_and_the_report_links_them(tmp_path):
    folder = ReportFolder(tmp_path / "report", "report")
    kept = []

    def progress(step, done, total):
        file = folder.path / "answers.jsonl"
        kept.append((done, total, len(file.read_text().splitlines()) if file.exists() else 0))

    evaluation = evaluated(BOTH, folder, progress)
    assert kept == [(done, 8, done) for done in range(9)]
    rows = [json.loads(line) for line in (folder.path / "answers.jsonl").read_text().splitlines()]
    assert rows[0]["scores"]["f1"] == 0
    assert rows[0]["answer"]["text"] == "wrong"
    assert rows[6]["error"] == "RuntimeError: broke | off"
    report = evaluation.report(complete=True)
    text = render(report)
    assert "| 4 | composed | RuntimeError: broke \\| off |" in text
    assert "[answers.jsonl](answers.jsonl)" in text
    draw(report, evaluation.rows, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_with_an_empty_cache_for_each_mode_all_questions_are_asked_in_one_after_the_other():
    happened = []

    def noted(body):
        happened.append(body["reuse"])
        return script(body)

    asked = msgspec.structs.replace(ASKED, cleared=True)
    asker = Asker(ScriptedStack(noted).query, {}, 1)
    evaluation = Evaluation(asker, BOTH, asked, None, lambda *_: None, clear=lambda: happened.append("clear"))
    evaluation.run(QUESTIONS[:2])
    assert happened == ["clear", "composed", "composed", "clear", "exact", "exact"]
    report = evaluation.report(complete=True)
    assert report.differences["exact_match"].value == -1
    assert list(notes(report)) == []
