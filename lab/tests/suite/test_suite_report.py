"""The report's folder and text, its figures, and the ends of logs."""

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from scripted_benchmarks import FACTS

from protocol.errors import ConfigError
from ragtree_lab.compose.benchmark import ComposeResult
from ragtree_lab.controller.benchmark import ControllerResult
from ragtree_lab.exactness import ExactnessResult
from ragtree_lab.families.benchmark import FamiliesResult
from ragtree_lab.fixed_costs.benchmark import FixedCosts
from ragtree_lab.follow_ups.benchmark import FollowUpResult
from ragtree_lab.graph.benchmark import GraphResult
from ragtree_lab.graph.policies.rows import GraphPoliciesResult
from ragtree_lab.ingestion import IngestionResult
from ragtree_lab.orders import OrdersResult
from ragtree_lab.overhead import OverheadResult
from ragtree_lab.prompts.benchmark import PromptsResult
from ragtree_lab.recall import RecallResult
from ragtree_lab.reorder import ReorderResult
from ragtree_lab.replay.results import ReplayResult
from ragtree_lab.retrieval import RetrievalResult
from ragtree_lab.scheduling import SchedulingResult
from ragtree_lab.sharing.benchmark import SharingResult
from ragtree_lab.sharing.fault_benchmark import PeerFaultsResult
from ragtree_lab.simulation.policies import simulated_policies
from ragtree_lab.simulation.sweep import SweepResult
from ragtree_lab.speculation import SpeculationReport
from ragtree_lab.suite.catalogue import BENCHMARKS
from ragtree_lab.suite.facts import gather
from ragtree_lab.suite.figure import Figure
from ragtree_lab.suite.key_figures import KEY_FIGURES
from ragtree_lab.suite.log_tail import last_lines
from ragtree_lab.suite.outcome import Outcome, Status
from ragtree_lab.suite.report import duration, render
from ragtree_lab.suite.suite_folder import SuiteFolder
from ragtree_lab.sustained import SustainedResult
from ragtree_lab.tiers import TiersResult

RESULTS = {
    "scheduling": SchedulingResult,
    "policies": SweepResult,
    "controller": ControllerResult,
    "retrieval": RetrievalResult,
    "recall": RecallResult,
    "ingestion": IngestionResult,
    "follow-ups": FollowUpResult,
    "graph": GraphResult,
    "graph-policies": GraphPoliciesResult,
    "tiers": TiersResult,
    "compose": ComposeResult,
    "exactness": ExactnessResult,
    "families": FamiliesResult,
    "sustained": SustainedResult,
    "sharing": SharingResult,
    "peer-faults": PeerFaultsResult,
    "orders": OrdersResult,
    "prompts": PromptsResult,
    "reorder": ReorderResult,
    "speculation": SpeculationReport,
    "overhead": OverheadResult,
    "fixed-costs": FixedCosts,
    "replay": ReplayResult,
}


def some(kind: Any) -> Any:
    """Return a value of a type, as it stands in JSON: numbers are 2, and objects have a policy's name as key."""
    if get_origin(kind) in (Union, UnionType):
        return some(get_args(kind)[0])
    if get_origin(kind) is list:
        return [some(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {name: some(get_args(kind)[1]) for name in simulated_policies()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {name: some(inner) for name, inner in get_type_hints(kind).items()}
    return kind(2) if kind in (int, float, bool) else "text"


def test_every_benchmark_has_figures():
    assert [benchmark.name for benchmark in BENCHMARKS] == list(KEY_FIGURES) == list(RESULTS)


@pytest.mark.parametrize("name", KEY_FIGURES)
def test_every_figure_is_in_the_result_and_its_title_names_what_it_is_of(name):
    result = some(RESULTS[name])
    for figure in KEY_FIGURES[name]:
        assert list(figure.rows(result)), figure
        fields = [part.partition("]")[0].split(",") for part in figure.place.split("[")[1:]]
        assert figure.title.count("{}") == figure.place.count("*") + sum(map(len, fields)), figure


def test_figures_show_ratios_shares_and_units():
    result = {"share": 0.1234, "times": {"a": 1234.56, "b": None}, "rows": [{"n": 4, "v": 2.0}, {"n": 0.5, "v": 3.0}]}

    def rows(place: str, unit: str = "", over: str = "") -> list[tuple[str, str]]:
        return list(Figure("of {}" if place != "share" else "share", place, unit, over).rows(result))

    assert rows("share", "%") == [("share", "12.3 %")]
    assert rows("times.*", "ms") == [("of a", "1,235 ms")]
    assert rows("rows[n].v", "x") == [("of 4", "2.00 x"), ("of 0.5", "3.00 x")]
    assert rows("rows[].v", "GB/s") == [("of 1", "2e-09 GB/s"), ("of 2", "3e-09 GB/s")]
    assert rows("rows[n].v", "x", over="rows[n].n") == [("of 4", "0.50 x"), ("of 0.5", "6.00 x")]
    assert rows("lacking.*") == rows("rows[n].lacking") == rows("times.a.b") == []


def test_no_figure_is_a_ratio_over_nothing():
    assert list(Figure("ratio", "a", "x", over="b").rows({"a": 1.0, "b": 0.0})) == []


def test_the_report_says_when_where_and_with_what(tmp_path):
    folder = SuiteFolder(tmp_path / "report")
    folder.picture("policies").write_bytes(b"png")
    outcomes = [Outcome("policies", "ragtree bench policies", 3725.0, Status.MEASURED, result={"trace": "zipf"})]
    text = render(FACTS, outcomes, ["tiers"], folder)
    for part in (
        "| date | 2026-03-01 12:00+00:00 |",
        "| processor | Some \\| processor, 2 cores |",
        "| memory | 8.0 GiB |",
        "| GPU | none |",
        "| versions | ragtree 1.2.3, torch 2.0 |",
        "| model | some-model, dtype auto, engine vllm |",
        "| commit | abc1234 |",
        "| [policies](#policies) | measured | 1:02:05 |",
        "![policies](policies.png)",
        "Not run so far: tiers.",
    ):
        assert part in text
    assert "--quick" not in text
    assert "--quick" in render(msgspec.structs.replace(FACTS, quick=True), [], [], folder)


def test_facts_are_those_of_this_machine_and_its_packages():
    facts = gather("fake", "a model", "float32", quick=True)
    assert facts.cores > 0
    assert facts.memory > 1 << 20
    assert {"python", "ragtree", "ray", "faiss-cpu"} <= facts.versions.keys()
    assert (facts.engine, facts.model, facts.dtype, facts.quick) == ("fake", "a model", "float32", True)


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty: name a new one with --out"):
        SuiteFolder(tmp_path)
    with pytest.raises(ConfigError, match="cannot be made"):
        SuiteFolder(tmp_path / "thesis")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis"]
    SuiteFolder(tmp_path / "new" / "below").write("report.md", b"text")
    assert [file.name for file in (tmp_path / "new" / "below").iterdir()] == ["report.md"]


def test_the_end_of_a_log_is_readable(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 50_000 + b"\nfirst\n\n\x1b[31mred\x1b[0m\n10 %\r20 %\r\nl\xc3\xb6st\xff\n" + b"y" * 1000)
    assert last_lines(log, 6) == ["first", "red", "10 %", "20 %", "löst\ufffd", "y" * 400]
    assert last_lines(log, 1) == ["y" * 400]
    log.write_bytes(b"")
    assert last_lines(log, 3) == []


def test_a_duration_has_hours_minutes_and_seconds():
    assert [duration(seconds) for seconds in (0.4, 75, 7200)] == ["0:00:00", "0:01:15", "2:00:00"]
