from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from rendered_release import Release

from scripts.chart.helm import Helm
from scripts.chart.value_sets import CHART, value_sets

SETS = value_sets()

Render = Callable[..., Release]


@pytest.fixture(scope="session")
def chart() -> Helm:
    return Helm(CHART)


@pytest.fixture(scope="session")
def render(chart) -> Render:
    """Render value sets by name, with optional settings. Each combination is rendered once per session."""

    @cache
    def render(*names: str, release: str = "ragtree", settings: tuple[str, ...] = ()) -> Release:
        files: list[Path] = [path for name in names for path in SETS[name]]
        return Release(chart.render(*files, release=release, settings=settings))

    return render


@pytest.fixture(params=SETS)
def each(request, render) -> Release:
    return render(request.param)


@pytest.fixture(scope="session")
def everything(render) -> Release:
    return render("everything")


@pytest.fixture(scope="session")
def defaults(render) -> Release:
    return render("defaults")


@pytest.fixture
def notes():
    """What an install with these settings prints."""

    def notes(*settings: str) -> str:
        sets = [word for setting in settings for word in ("--set-json", setting)]
        return _Install(CHART).notes(*sets)

    return notes


class _Install(Helm):
    def notes(self, *sets: str) -> str:
        dry = ("--dry-run=client", "--namespace", "rag")
        return self._run("install", "ragtree", str(self._chart), *dry, *sets).partition("NOTES:")[2]
