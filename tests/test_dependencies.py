"""docs/dependencies.md has a row for each dependency in pyproject.toml, and no others."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found.group()


REQUIREMENTS = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
DECLARED = sorted({_name(requirement) for requirement in REQUIREMENTS})
ROWS = {row[1]: row for row in re.findall(r"^(\| `([^`]+)`.*\|)$", PAGE, re.MULTILINE)}


@pytest.mark.parametrize("name", DECLARED)
def test_every_dependency_row_is_complete(name):
    cells = [cell.strip() for cell in ROWS[name][0].strip("|").split("|")]
    assert len(cells) == 4
    assert all(cells)


def test_every_row_has_a_dependency():
    assert sorted(ROWS) == DECLARED


def test_overridden_packages_are_explained():
    overrides = (ROOT / "requirements" / "overrides.txt").read_text().splitlines()
    names = [_name(line) for line in overrides if line and not line.startswith("#")]
    assert names
    kept_out = PAGE.partition("## Kept out")[2]
    assert [name for name in names if name not in kept_out] == []
