"""The project's packages, as the import rules name them, and their folders."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PROJECTS = (ROOT, ROOT / "lab", ROOT / "contrib" / "vllm")
_NAMES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def _folder(package: str) -> Path:
    return next(project / package for project in _PROJECTS if (project / package / "__init__.py").exists())


PACKAGES = {name: _folder(name) for name in _NAMES}
"""Folders by package, those of the laboratory and of what is contributed included."""
