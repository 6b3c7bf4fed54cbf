"""The command, on a tiny set with the hashing embedder and the real rules."""

import json

import pytest
from family import DOCUMENTS, QUESTIONS, documents, write_family, write_set
from typer.testing import CliRunner

from protocol.errors import ConfigError
from ragtree_lab.graph.attention.benchmark import AttentionBenchmark
from ragtree_lab.graph.attention.quality import QualityRow
from ragtree_lab.graph.attention.results import AttentionResult, AttentionRow, Slo, TriedRate
from ragtree_lab.graph.attention.ways import OURS
from ragtree_lab.graph.attention.ways import WAYS as ATTENTION_WAYS
from services.cli.app import app

WAYS = {"dense", "hybrid", "graph", "local", "global"}


@pytest.fixture(autouse=True)
def hashing(monkeypatch):
    monkeypatch.setenv("RAGTREE_RETRIEVER__EMBEDDER__KIND", "hashing")


def bench(data, *options: str, attention: bool = False) -> str:
    chosen = [] if attention else ["--no-attention"]
    ran = CliRunner().invoke(app, ["bench", "graph", *chosen, "--data", str(data), *options], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_every_set_with_known_passages_is_measured_in_every_way(tmp_path):
    result = json.loads(bench(write_family(tmp_path), "--json"))
    searched = ["recall_at_5", "questions", "gold", "search_ms", "index", "left_out"]
    throughput = ["throughput", "throughput_ratio", "throughput_at_slo", "throughput_at_slo_ratio", "slo", "no_slo"]
    attention = ["attention", "ttft_ratio", *throughput, "quality"]
    assert list(result) == searched + attention
    assert not any(result[name] for name in attention)
    assert result["gold"] == {"given": "given", "told": "answer"}
    assert result["questions"] == {"given": 3, "told": 3}
    assert result["left_out"] == {
        "asked": "no documents",
        "stored": "no questions",
        "unknown": "no question has known passages",
    }
    for name in result["gold"]:
        assert result["recall_at_5"][name].keys() == result["search_ms"][name].keys() == WAYS
        # There are five documents, so a search that returns all of them finds the gold ones.
        assert {result["recall_at_5"][name][way] for way in ("dense", "hybrid", "graph")} == {1}
        assert all(0 <= recall <= 1 for recall in result["recall_at_5"][name].values())
        assert all(ms > 0 for ms in result["search_ms"][name].values())


def test_the_graph_has_read_all_documents_before_it_is_searched(tmp_path):
    (index,) = json.loads(bench(write_family(tmp_path), "--set", "given", "--json"))["index"].values()
    assert index["documents"] == index["chunks"] == len(DOCUMENTS)
    assert index["entities"] >= len({"Albert Grant", "Bertha Grant", "Conrad Miller", "Acme Company", "Danube"})
    assert index["statements"] >= len(DOCUMENTS)
    assert index["relations"] >= 3
    assert index["bytes"] > 5 * 4096
    assert index["documents_per_minute"] == pytest.approx(60 * len(DOCUMENTS) / index["seconds"])


def test_entities_that_a_question_names_lead_to_what_they_are_related_to(tmp_path):
    others = [
        {"doc_id": f"other{number}", "text": f"Person{number} Smith lives in City{number} with a child."}
        for number in range(40)
    ]
    question = {**QUESTIONS[0], "gold_doc_ids": ["albert", "bertha"]}
    write_set(tmp_path, "crowd", documents() + others, [question])
    recall = json.loads(bench(tmp_path, "--json"))["recall_at_5"]["crowd"]
    assert recall["local"] == recall["graph"] == 1


def test_questions_and_sets_can_be_limited(tmp_path):
    options = ("--set", "told", "--set", "given", "--questions", "2", "--json")
    result = json.loads(bench(write_family(tmp_path), *options))
    assert result["questions"] == {"told": 2, "given": 2}
    assert result["left_out"] == {}


def test_tables_have_a_row_for_each_set_and_say_how_gold_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    printed = bench(write_family(tmp_path), "--set", "told", "--set", "asked")
    assert printed.count("told ") == 3
    assert "that contain one of its answers" in " ".join(printed.split())
    assert "asked is left out: no documents" in printed


class MeasuredAttention:
    """Stands in for the benchmark of attention. ``slo`` is whether throughput at the SLO is asked for."""

    def __init__(self, slo: bool) -> None:
        self._slo = slo

    async def run(self, sets, context_tokens) -> AttentionResult:
        row = AttentionRow("told", 16, 990.0, 360.0, 0.98, 0.4, dict.fromkeys(ATTENTION_WAYS, 800.0))
        tried = [TriedRate(1.5, 1.0, 0.5, sustained=True), TriedRate(2.0, 0.8, 3.0, sustained=False)]
        slo = Slo("told", 990.0, 20, 800.0, 4000.0, {OURS: tried, "vllm_prefix": tried[1:]}) if self._slo else None
        at_slo = {OURS: 1.5} if slo else {}
        rates = dict.fromkeys(ATTENTION_WAYS, 2.5)
        quality = QualityRow("told", 1000, "depth", 16, 0.5, 0.1, 0.25, 0.3, (-0.1, 0.0))
        return AttentionResult([row], {"self": 3.0}, rates, {}, at_slo, {}, slo, "too few" if slo else "", [quality])


def test_throughput_at_the_slo_is_shown_with_its_bound_and_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(
        AttentionBenchmark, "over", lambda generator, folder, slo, answers, progress: MeasuredAttention(slo is not None)
    )
    data = write_family(tmp_path)
    printed = bench(data, "--set", "told", attention=True)
    assert ["rate", "1.50", "-"] in [line.split() for line in printed.splitlines()]
    # The caption is as wide as its table.
    words = " ".join(printed.split())
    assert "told: first tokens within 4,000 ms, 5 times the SLO; 20 prompts at each rate" in words
    assert "throughput at the SLO is not measured: too few" in words
    result = json.loads(bench(data, "--set", "told", "--no-slo", "--json", attention=True))
    assert (result["slo"], result["throughput_at_slo"]) == (None, {})
    assert result["throughput"].keys() == set(ATTENTION_WAYS)


def test_nothing_that_can_be_measured_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"can be measured \(asked: no documents\)"):
        bench(write_family(tmp_path), "--set", "asked")
    with pytest.raises(ConfigError, match="there is none"):
        bench(tmp_path / "empty")
