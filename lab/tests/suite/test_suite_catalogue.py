"""The suite's benchmarks: their names, options and data."""

from pathlib import Path

import pytest
import typer

from protocol.errors import ConfigError
from ragtree_lab.commands import app
from ragtree_lab.suite.catalogue import BENCHMARKS, Benchmark, selected
from ragtree_lab.workloads.by_name import TRACES

COMMANDS = typer.main.get_command(app).commands


def named(chosen: list[Benchmark]) -> list[str]:
    return [benchmark.name for benchmark in chosen]


def test_every_benchmark_of_the_command_line_is_in_the_suite():
    # One runs the suite, and the others are for the models that they train.
    assert set(named(selected([], []))) == COMMANDS.keys() - {"all", "auxiliary", "fine-tuning"}


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda each: each.name)
@pytest.mark.parametrize("quick", [True, False])
def test_every_command_line_is_one_that_its_command_takes(benchmark, quick, tmp_path):
    (tmp_path / "trace_ragpulse").mkdir()
    name, *options = benchmark.arguments(tmp_path, quick, tmp_path / "picture.png")
    taken = COMMANDS[name].make_context(name, options).params
    assert taken["as_json"]
    assert taken.get("plot") == (tmp_path / "picture.png" if benchmark.draws else None)
    if benchmark.sets:
        assert taken["data"] == tmp_path
        options = [taken.get(option) for option in ("workload", "dataset", "corpus")]
        used = {*options, *taken.get("sets", "").split(","), *(taken.get("chosen") or ())} - {None, ""}
        if name == "graph" and not quick:
            # It takes every set that is there.
            used = set(benchmark.sets)
        assert {name.rpartition("@")[2] for name in used} == set(benchmark.sets)


def test_policies_prefer_a_real_trace_if_it_is_there(tmp_path):
    (policies,) = selected(["policies"], [])
    assert policies.trace == ("ragpulse", TRACES["ragpulse"])
    assert policies.missing(tmp_path) == ""
    assert "--trace" not in policies.arguments(tmp_path, True, Path("picture"))
    (tmp_path / "trace_ragpulse").mkdir()
    assert "--trace ragpulse" in " ".join(policies.arguments(tmp_path, True, Path("picture")))


def test_benchmarks_are_chosen_by_name_and_keep_their_order():
    assert named(selected(["tiers", "scheduling"], [])) == ["scheduling", "tiers"]
    assert named(selected([], named(list(BENCHMARKS[2:])))) == ["scheduling", "policies"]


def test_unknown_names_are_refused_with_the_known_ones():
    for only, skip, option in ((["tires"], [], "--only"), ([], ["tires"], "--skip")):
        with pytest.raises(ConfigError, match=f"unknown benchmark tires in {option}; the benchmarks are scheduling, "):
            selected(only, skip)
    with pytest.raises(ConfigError, match="no benchmark"):
        selected(["tiers"], ["tiers"])
