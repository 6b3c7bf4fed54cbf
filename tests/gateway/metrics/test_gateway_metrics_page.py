"""docs/metrics.md lists exactly the exposed metrics, and the pages for operators name existing options."""

import re
from pathlib import Path

import pytest
from exposed import gateways_metrics

from services.config import Config

DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|[^|]+\|[^|]*\|$", re.MULTILINE)
OPTION = re.compile(r"`((?:gateway|generator|controller|retriever|observability|server)\.[a-z_.]+)[`:]")


async def test_page_lists_exactly_the_metrics():
    rows = ROW.findall((DOCS / "metrics.md").read_text(encoding="utf-8"))
    assert len({name for name, *_ in rows}) == len(rows)
    documented = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    exposed = {metric.name: (metric.type, metric.labels) for metric in (await gateways_metrics()).values()}
    assert documented == exposed


async def test_no_label_value_comes_from_a_caller():
    labels = {label for metric in (await gateways_metrics()).values() for label in metric.labels}
    assert labels == {
        "outcome",
        "approximation",
        "attention",
        "code",
        "stage",
        "source",
        "tier",
        "reason",
        "route",
        "status",
        "kind",
        "part",
        "state",
        "version",
    }


@pytest.mark.parametrize("page", ["metrics.md", "runbook.md"])
def test_page_names_existing_options(page: str):
    named = set(OPTION.findall((DOCS / page).read_text(encoding="utf-8")))
    assert named
    config = Config().model_dump()
    for option in named:
        here = config
        for step in option.split("."):
            assert step in here, option
            here = here[step]
