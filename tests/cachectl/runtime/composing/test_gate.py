"""The gate's files: what passes, and what becomes of files that cannot be believed."""

import msgspec
import pytest

from cachectl.runtime.composing import Gate, GateFolder
from protocol.gate import DEPENDENCY_AT_DEPTH, SELECTION, TREES, GateReport, current_version

REPORT = GateReport("f1", "a model", "query", 0.2, True, "", (), 0.98, 0.01, 0.5, 1000.0, SELECTION)


@pytest.fixture
def folder(tmp_path):
    return GateFolder(tmp_path)


@pytest.mark.parametrize(
    ("method", "share", "passes"),
    [("query", 0.2, True), ("query", 0.5, True), ("query", 0.19, False), ("random", 0.2, False)],
)
def test_a_passed_gate_holds_for_its_selector_and_for_larger_shares(method, share, passes):
    assert Gate([REPORT]).passes(method, share) is passes


def test_the_bound_is_that_of_the_nearest_share_that_was_examined():
    gate = Gate([msgspec.structs.replace(REPORT, share=0.1, bound=0.3), REPORT])
    bounds = [gate.bound("query", share) for share in (0.05, 0.1, 0.15, 0.2, 0.9)]
    assert bounds == [None, 0.3, 0.3, 0.5, 0.5]
    assert gate.bound("random", 0.5) is None


def test_nothing_passes_without_a_report_or_after_a_failed_one(folder):
    assert not folder.read("f1").passes("query", 1.0)
    folder.add(msgspec.structs.replace(REPORT, passed=False))
    assert not folder.read("f1").passes("query", 1.0)


def test_a_new_report_takes_the_place_of_the_old_one(folder):
    other = msgspec.structs.replace(REPORT, share=0.4)
    for report in (REPORT, other, msgspec.structs.replace(REPORT, passed=False)):
        folder.add(report)
    assert [(report.share, report.passed) for report in folder.read("f1").reports] == [(0.4, True), (0.2, False)]
    assert list(folder.all()) == list(folder.read("f1").reports)


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_file_that_was_cut_short_passes_nothing(folder, tmp_path, cut):
    folder.add(REPORT)
    file = tmp_path / "gates" / "f1.json"
    file.write_text(file.read_text()[:cut])
    assert folder.read("f1").reports == ()
    # Running the gate again repairs it.
    folder.add(REPORT)
    assert folder.read("f1").passes("query", 0.2)


def test_a_file_of_another_model_passes_nothing(folder, tmp_path):
    folder.add(REPORT)
    (tmp_path / "gates" / "f1.json").rename(tmp_path / "gates" / "f2.json")
    assert folder.read("f2").reports == ()


@pytest.mark.parametrize("method", ["query", DEPENDENCY_AT_DEPTH])
def test_a_report_on_an_earlier_version_passes_nothing(folder, method):
    report = msgspec.structs.replace(REPORT, method=method, selection=current_version(method))
    folder.add(report)
    assert folder.read("f1").passes(method, 0.2)
    folder.add(msgspec.structs.replace(report, selection=report.selection - 1))
    assert folder.read("f1").reports == ()


def test_selectors_and_trees_have_versions_of_their_own():
    assert current_version("query") == SELECTION
    assert current_version(DEPENDENCY_AT_DEPTH) == TREES
    assert TREES > 4, "reports on earlier prompts had up to this version of the selectors"
