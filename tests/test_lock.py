"""requirements/cpu.lock serves every Python that pyproject.toml names.

The metadata of the installed packages is compared with the lock. Whether each version has a wheel of each package is
known to the index alone, and `make lock` asks it.
"""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Programming Language :: Python :: (.+)", "\n".join(PROJECT["classifiers"]))
LOCKED = dict(
    line.split("==") for line in (ROOT / "requirements" / "cpu.lock").read_text().splitlines() if "==" in line
)
KEPT_OUT = {
    Requirement(line).name
    for line in (ROOT / "requirements" / "overrides.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


def _environment(python: str) -> dict[str, str]:
    """The markers' values under a version, such as ``3.12`` or ``3.12.1``."""
    short = ".".join(python.split(".")[:2])
    return {
        **default_environment(),
        "python_version": short,
        "python_full_version": python if python != short else f"{python}.0",
        "implementation_version": python,
    }


def _missing(python: str, locked: dict[str, str]) -> list[str]:
    """What the project's dependencies and theirs require under this Python, and the lock does not have."""
    environment = _environment(python)
    waiting = [Requirement(line) for line in PROJECT["dependencies"]]
    waiting += [
        Requirement(line) for extra in ("cpu", "loadtest", "dev") for line in PROJECT["optional-dependencies"][extra]
    ]
    missing, seen = [], set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in KEPT_OUT:
            continue
        if name not in locked or not wanted.specifier.contains(locked[name], prereleases=True):
            missing.append(str(wanted))
            continue
        for extra in {"", *wanted.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in metadata(name).get_all("Requires-Dist") or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({**environment, "extra": extra}):
                    waiting.append(needed)
    return missing


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_all_that_is_required(python):
    assert _missing(python, LOCKED) == []


def test_a_package_that_only_some_pythons_require_is_missed_there():
    # Of redis, up to Python 3.11.2.
    less = {name: version for name, version in LOCKED.items() if name != "async-timeout"}
    assert [Requirement(line).name for line in _missing("3.11.1", less)] == ["async-timeout"]
    assert _missing("3.12", less) == []


@pytest.mark.parametrize("python", PYTHONS)
def test_no_locked_package_refuses_this_python(python):
    refused = {
        name: accepted
        for name in LOCKED
        if (accepted := metadata(name)["Requires-Python"])
        and not SpecifierSet(accepted).contains(f"{python}.0", prereleases=True)
    }
    assert refused == {}
