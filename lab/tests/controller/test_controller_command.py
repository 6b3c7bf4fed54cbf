"""The command, on a small scale."""

import json

import pytest
from typer.testing import CliRunner

from services.cli.app import app

SMALL = [
    *("--instances", "2,3", "--shards", "1,2", "--requests", "20", "--nodes", "300", "--holders", "2,1"),
    *("--tree-nodes", "300,600", "--tree-requests", "50"),
    *("--machines", "2", "--machine-requests", "20", "--links", "10", "--documents", "1000"),
]


def test_the_command_prints_all_results():
    ran = CliRunner().invoke(app, ["bench", "controller", *SMALL, "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert [(row["instances"], row["shards"]) for row in found["decisions"]] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert list(found["shards_speedup"]) == ["2", "3"]
    assert [row["machines"] for row in found["directory"]["rows"]] == [1, 2, 1, 2]
    assert [row["nodes"] for row in found["growth"]] == [301, 601]
    assert [row["way"] for row in found["network"]] == ["routed", "routed", "shared"]
    assert "The directory takes about" in ran.stderr


def test_tables_have_a_row_for_each_result():
    ran = CliRunner().invoke(app, ["bench", "controller", *SMALL])
    assert ran.exit_code == 0, ran.output
    assert "2 instances: 2 shards decide" in ran.stdout
    assert "each further machine adds" in ran.stdout
    assert "│ 601 " in ran.stdout
    assert "601 nodes: an index grew within" in ran.stdout
    assert "routed" in ran.stdout


@pytest.mark.parametrize("option", ["--instances", "--shards", "--holders", "--tree-nodes", "--machines", "--links"])
def test_lists_that_are_no_numbers_are_refused(option):
    ran = CliRunner().invoke(app, ["bench", "controller", option, "1,x"])
    assert ran.exit_code == 2
    assert option in ran.output


def test_too_large_a_directory_is_refused_before_anything_runs():
    ran = CliRunner().invoke(app, ["bench", "controller", "--nodes", "10000000", "--holders", "1000000"])
    assert ran.exit_code != 0
    assert "but only" in f"{ran.output}{ran.exception}"
    assert "deciding" not in ran.output
