"""The output and errors of ``ragtree bench policies``, ``scheduling`` and ``orders``."""

import gzip
import json
import signal
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cachectl.costs import device_profile
from examine.measuring.engines import Generation
from protocol.errors import ConfigError, UnknownPolicy
from protocol.generation import PrefillResult
from ragtree_lab.measuring.systems import System, Systems
from ragtree_lab.simulation.policies import simulated_policies
from services.cli.app import app

PNG = b"\x89PNG\r\n"


def bench(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Five popular documents in sequence, and now and then one that never repeats."""
    file = tmp_path / "trace.jsonl"
    lines = []
    for number in range(60):
        names = [f"popular {number % 5}", f"behind {number % 5}"] if number % 3 else [f"once {number}"]
        docs = [{"id": name, "tokens": 100} for name in names]
        lines.append(json.dumps({"t": float(number), "docs": docs, "question_tokens": 10}))
    file.write_text("\n".join(lines))
    return str(file)


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def number(request) -> Iterator[signal.Signals]:
    """A signal that is not ignored, as it would be below ``nohup``."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


def test_a_benchmark_that_is_ended_closes_what_it_has_opened(monkeypatch, number):
    closed = []

    def run(*_):
        try:
            signal.raise_signal(number)
        finally:
            closed.append(number)

    monkeypatch.setattr("ragtree_lab.scheduling.SchedulingBenchmark.run", run)
    before = signal.getsignal(number)
    assert CliRunner().invoke(app, ["bench", "scheduling"]).exit_code == 128 + number
    assert closed == [number]
    assert signal.getsignal(number) is before


def test_policies_are_measured_on_the_same_requests(trace):
    room = ("--gpu-tokens", "300", "--host-tokens", "700")
    result = json.loads(bench("policies", "--trace", trace, *room, "--policies", "all", "--json"))
    assert list(result["policies"]) == simulated_policies()
    for row in result["policies"].values():
        assert {"doc_hit_rate", "token_hit_rate", "mean_ttft_s", "p99_ttft_s", "evictions"} <= row.keys()
        assert row["requests"] == 60
        assert row["documents"] == 100
    assert result["policies"]["NONE"]["doc_hit_rate"] == 0
    assert result["policies"]["BELADY"]["doc_hit_rate"] >= result["policies"]["LRU"]["doc_hit_rate"] > 0


def test_top_k_limits_documents_per_request(trace):
    result = json.loads(bench("policies", "--trace", trace, "--policies", "LRU", "--top-k", "1", "--json"))
    assert result["policies"]["LRU"]["documents"] == 60


def test_a_profile_file_says_how_large_kv_is(trace, tmp_path):
    shipped = json.loads((Path(device_profile.__file__).parent / "profiles" / "a10g-7b.json").read_bytes())
    ttft = []
    for kv_bytes in (shipped["kv_bytes_per_token"], 100 * shipped["kv_bytes_per_token"]):
        file = tmp_path / f"{kv_bytes}.json"
        file.write_text(json.dumps(shipped | {"kv_bytes_per_token": kv_bytes}))
        cached = ("policies", "--trace", trace, "--policies", "LRU", "--gpu-tokens", "0", "--json")
        for more in ((), ("--kv-bytes", "1000")):
            result = json.loads(bench(*cached, "--device", str(file), *more))
            ttft.append(result["policies"]["LRU"]["mean_ttft_s"])
    small, given, large, given_again = ttft
    assert large > small > given == given_again


def test_policies_print_a_table_by_default(trace):
    printed = bench("policies", "--trace", trace, "--policies", "LRU,PGDSF")
    assert "PGDSF" in printed
    assert "{" not in printed


def test_plot_shows_hit_rates_by_size(trace, tmp_path):
    picture = tmp_path / "hits.png"
    bench("policies", "--trace", trace, "--policies", "LRU,PGDSF", "--host-tokens", "400", "--plot", str(picture))
    assert picture.read_bytes().startswith(PNG)


def test_cache_size_is_chosen_by_lru_hit_rate(trace):
    arguments = ("policies", "--trace", trace, "--policies", "LRU", "--gpu-tokens", "0", "--json")
    result = json.loads(bench(*arguments, "--at-lru", "0.5"))
    assert result["policies"]["LRU"]["token_hit_rate"] >= 0.5
    smaller = str(result["host_tokens"] // 2)
    assert json.loads(bench(*arguments, "--host-tokens", smaller))["policies"]["LRU"]["token_hit_rate"] < 0.5


def test_paper_table_has_the_published_ranges():
    result = json.loads(bench("policies", "--paper-table2", "--requests", "60", "--json"))
    assert list(result["workloads"]) == ["mmlu-like", "nq-like"]
    for table in result["workloads"].values():
        assert {"PGDSF", "GDSF", "LRU", "LFU"} <= table.keys()
        assert list(table["PGDSF"]) == ["8", "16", "32", "64", "128"]
    assert result["pgdsf_over"]["LRU"]["published_most"] == 1.62
    assert result["columns"] == 10


def test_an_unknown_policy_is_refused_before_anything_runs(trace):
    with pytest.raises(UnknownPolicy, match="there is no policy 'BEST'; choose one of NONE, LRU"):
        bench("policies", "--trace", trace, "--policies", "LRU,BEST")


def test_an_unknown_trace_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match="ragpulse"):
        bench("policies", "--trace", "no-such-trace")


def test_scheduling_is_measured_on_a_large_tree_and_a_small_one():
    result = json.loads(bench("scheduling", "--nodes", "4000", "--requests", "200", "--json"))
    assert list(result["by_nodes"]) == ["3000", "4000"]
    assert 0 < result["p50_us"] <= result["p99_us"]
    assert result["by_nodes"]["4000"]["evictions"] > 0


@pytest.fixture
def tales(tmp_path: Path, monkeypatch) -> str:
    """A synthetic question set, on systems that answer "amber" and have half of every prompt cached."""

    @asynccontextmanager
    async def ours(_systems, _order):
        async def answer(prompt, sampling, scores):
            assert len(scores) >= len(prompt.documents) > 0
            return Generation(5.0, PrefillResult(10, 5, 1.0), "Amber." if sampling.max_tokens > 1 else "", ())

        async def settle():
            pass

        yield System(answer, settle)

    monkeypatch.setattr(Systems, "ours", ours)
    monkeypatch.setenv("RAGTREE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RAGTREE_RETRIEVER__EMBEDDER__KIND", "hashing")
    # Its tokenizer needs no download.
    monkeypatch.setenv("RAGTREE_GENERATOR__ENGINE", "fake")
    things = ["amber", "basalt", "cedar", "dune"]
    rows = {
        "docs": [{"doc_id": thing, "text": f"The {thing} is {thing}."} for thing in things],
        "questions": [
            {"qid": thing, "question": f"What is the {thing}?", "answers": [thing], "gold_doc_ids": [thing]}
            for thing in things
        ],
    }
    (tmp_path / "tales").mkdir()
    for name, lines in rows.items():
        with gzip.open(tmp_path / "tales" / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return str(tmp_path)


def test_orders_compares_the_given_sets(tales):
    arguments = ("orders", "--data", tales, "--sets", "tales", "--top-k", "2", "--at-once", "3")
    rows = json.loads(bench(*arguments, "--json"))["rows"]
    assert [row["order"] for row in rows] == ["retrieval", "canonical", "cached-first", "cached-first within 0.05"]
    for row in rows:
        assert (row["set"], row["questions"], row["token_hit_rate"], row["mean_ttft_ms"]) == ("tales", 4, 0.5, 5.0)
        assert (row["exact_match"], row["f1"], row["answer_in_prompt"]) == (0.25, 0.25, 1.0)
    assert [row["f1_over_retrieval"] for row in rows] == [None] + [{"mean": 0.0, "low": 0.0, "high": 0.0}] * 3
    printed = bench(*arguments)
    assert "cached-first" in printed
    assert "tales: 4 questions; the prompt holds a right answer for 100%" in printed
    assert "{" not in printed


def test_orders_refuses_a_missing_set_before_anything_runs(tales):
    with pytest.raises(ConfigError, match="no data set 'nowhere'"):
        bench("orders", "--data", tales, "--sets", "tales,nowhere")
    with pytest.raises(ConfigError, match="no corpus 'nowhere'"):
        bench("orders", "--data", tales, "--sets", "tales,needles@nowhere")
    assert not (Path(tales) / "cache").exists()
