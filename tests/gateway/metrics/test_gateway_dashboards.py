"""The Grafana dashboards: they can be imported, and their panels use existing metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exposed import Exposed, assert_exists, gateways_metrics, vllms_metrics
from promql import selectors

DASHBOARDS = sorted((Path(__file__).parents[3] / "helm/ragtree/dashboards").glob("*.json"))
VARIABLES = {"datasource", "namespace", "job"}


def loaded(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def charts(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[Any]:
    for path in DASHBOARDS:
        for panel in charts(loaded(path)):
            for target in panel["targets"]:
                yield pytest.param(target["expr"], id=f"{path.stem}: {panel['title']} {target['refId']}")


def parsable(expression: str) -> str:
    """The expression with a real window in place of Grafana's variable."""
    return expression.replace("$__rate_interval", "5m")


@pytest.fixture(scope="module")
async def known() -> dict[str, Exposed]:
    return {**await gateways_metrics(), **vllms_metrics()}


@pytest.mark.parametrize("expression", expressions())
async def test_panels_use_existing_metrics(expression: str, known: dict[str, Exposed]):
    found = list(selectors(parsable(expression)))
    assert found
    for name, labels in found:
        assert_exists(name, labels, known)
    assert expression.count("{namespace=~") == len(found), "the panel must filter by deployment"
    assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES | {"__rate_interval"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_legends_use_existing_labels(path: Path):
    for panel in charts(loaded(path)):
        for target in panel["targets"]:
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = [labels | {"instance"} for _, labels in selectors(parsable(target["expr"]))]
            assert all(named <= labels for labels in kept), panel["title"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_is_importable(path: Path):
    board = loaded(path)
    assert board["uid"] == path.stem, "the address must be stable"
    assert board["title"] == f"RAGTree: {path.stem.removeprefix('ragtree-')}"
    assert board["id"] is None
    assert board["schemaVersion"] >= 39
    assert {variable["name"] for variable in board["templating"]["list"]} == VARIABLES
    sources = re.findall(r'"uid": "(\$\{\w+\})"', path.read_text(encoding="utf-8"))
    assert set(sources) == {"${datasource}"}
    assert not re.search(r'"datasource": "', path.read_text(encoding="utf-8")), (
        "data sources must not be referenced by name"
    )


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_descriptions_and_units(path: Path):
    for panel in charts(loaded(path)):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panel_ids_are_unique_and_panels_do_not_overlap(path: Path):
    panels = loaded(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


def test_there_are_three_dashboards():
    assert [path.stem for path in DASHBOARDS] == ["ragtree-cache", "ragtree-engine", "ragtree-service"]


async def test_every_gateway_metric_is_shown(known: dict[str, Exposed]):
    shown = {name for param in expressions() for name, _ in selectors(parsable(param.values[0]))}
    unseen = {name for name, metric in known.items() if name.startswith("ragtree_") and not metric.samples & shown}
    assert unseen == set()
