"""docs/architecture.md names every package there is, and nothing that is not there."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", PAGE))
NAMED_PATHS = {text for text in QUOTED if re.fullmatch(r"[\w.-]+/[\w./-]*|[\w-]+\.(toml|md|py|yaml|lock)", text)}
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def _folders() -> list[str]:
    inits = (path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))
    return sorted(f"{path.parent.relative_to(ROOT).as_posix()}/" for path in inits)


def test_the_import_rules_cover_every_top_level_package():
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert there == set(PACKAGES)


@pytest.mark.parametrize("folder", _folders())
def test_every_package_and_module_folder_has_its_line(folder):
    assert f"`{folder}`" in PAGE


@pytest.mark.parametrize("path", sorted(NAMED_PATHS))
def test_every_path_it_names_exists(path):
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


def test_it_begins_with_the_life_of_a_query():
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings[0] == "The life of a query"
    calls = [
        "retriever.search",
        "controller.on_candidates",
        "controller.admit",
        "generator.stream",
        "controller.complete",
    ]
    places = [PAGE.index(f"`{call}(") for call in calls]
    assert places == sorted(places)
