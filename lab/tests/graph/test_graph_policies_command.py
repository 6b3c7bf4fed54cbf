"""The command, on a tiny set with the hashing embedder, the real rules and the fake engine's tokenizer."""

import json

import pytest
from family import QUESTIONS, documents, write_family, write_set
from typer.testing import CliRunner

from protocol.errors import ConfigError, UnknownPolicy
from services.cli.app import app


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setenv("RAGTREE_RETRIEVER__EMBEDDER__KIND", "hashing")
    monkeypatch.setenv("RAGTREE_GENERATOR__ENGINE", "fake")
    monkeypatch.setenv("COLUMNS", "200")


def bench(data, *options: str) -> str:
    command = ["bench", "graph-policies", "--data", str(data), "--seeds", "2", *options]
    ran = CliRunner().invoke(app, command, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_policies_and_orders_are_compared_on_the_facts_of_each_set(tmp_path):
    options = ("--sets", "given,unknown", "--waiting", "0,2", "--sizes", "0.5", "--json")
    result = json.loads(bench(write_family(tmp_path), *options))
    # Passages need not be known, so the second set has the same facts as the first one.
    assert result["sets"]["given"] == result["sets"]["unknown"]
    assert 1 <= result["sets"]["given"]["prompts"] <= len(QUESTIONS)
    assert result["sets"]["given"]["distinct_tokens"] >= result["sets"]["given"]["tree_tokens"] > 0
    names = ["LRU", "LFU", "PGDSF", "LACR", "LACR-NORMALISED", "FORESIGHT", "BELADY"]
    assert [mean["waiting"] for mean in result["means"]] == [0, 2]
    assert all(list(mean["token_hit_rate"]) == names for mean in result["means"])
    assert len(result["policies"]) == 2 * 3 * 1 * 2 * len(names)
    assert {row["order"] for row in result["orders"]} == {"fifo", "lpm", "lsp", "cache-aware"}
    assert {row["waiting"] for row in result["orders"]} == {2}


def test_tables_have_a_line_for_each_stream_and_size(tmp_path):
    printed = bench(
        write_family(tmp_path), "--sets", "given", "--sizes", "1", "--waiting", "0,2", "--policies", "LRU,LACR"
    )
    for stream in ("uniform", "temporal", "zipf"):
        assert len([line for line in printed.splitlines() if f" {stream} " in line]) == 2 + 1
    assert "waiting: LACR's mean token hit rate is" in printed


def test_wrong_options_are_refused(tmp_path):
    write_family(tmp_path)
    with pytest.raises(UnknownPolicy, match="no policy 'MRU'"):
        bench(tmp_path, "--sets", "given", "--policies", "LRU,MRU")
    with pytest.raises(ConfigError, match="data set 'asked'"):
        bench(tmp_path, "--sets", "asked")
    foreign = [{**one, "lang": "de"} for one in QUESTIONS]
    write_set(tmp_path, "foreign", documents(), foreign)
    with pytest.raises(ConfigError, match="foreign has no documents or no questions in English"):
        bench(tmp_path, "--sets", "foreign")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--sizes", "2"),
        ("--sizes", "0"),
        ("--sizes", ""),
        ("--waiting", "-1"),
        ("--waiting", "8.5"),
        ("--waiting", ""),
        ("--policies", ","),
        ("--sets", ""),
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path, option, value):
    ran = CliRunner().invoke(app, ["bench", "graph-policies", "--data", str(tmp_path), option, value])
    assert ran.exit_code == 2
    assert option in ran.output
