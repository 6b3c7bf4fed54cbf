"""Limits on the size of files and folders, and of the median file, so that the code stays easy to navigate."""

from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from packages import PACKAGES, ROOT

OTHERS = ["tests", "lab/tests", "lab/docs", "lab/results", "contrib", "scripts", "docs", "docker", "helm"]
MADE = {".so", ".c", ".pyc"}
"""Suffixes of build results."""

FLAT = {"retriever/loaders"}
"""Folders of many small alternatives, one per file."""


def files_below(folder: str) -> list[Path]:
    found = (ROOT / folder).rglob("*")
    return [file.relative_to(ROOT) for file in found if file.is_file() and file.suffix not in MADE]


def python_files(folder: str) -> list[Path]:
    return [file for file in files_below(folder) if file.suffix == ".py"]


def length(file: Path) -> int:
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


def longer_than(most: int, files: list[Path]) -> dict[str, int]:
    lengths = {str(file): length(file) for file in files}
    return {file: lines for file, lines in lengths.items() if lines > most}


FOLDERS = [folder.relative_to(ROOT).as_posix() for folder in PACKAGES.values()]


@pytest.mark.parametrize("package", FOLDERS)
def test_no_product_file_is_longer_than_400_lines(package):
    assert longer_than(400, python_files(package)) == {}


def test_the_median_product_file_is_shorter_than_120_lines():
    files = [file for package in FOLDERS for file in python_files(package) if file.name != "__init__.py"]
    assert median(map(length, files)) < 120


TEST_FOLDERS = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._")


@pytest.mark.parametrize("folder", TEST_FOLDERS)
def test_no_test_file_is_longer_than_600_lines(folder):
    assert longer_than(600, python_files(f"tests/{folder}")) == {}


@pytest.mark.parametrize("part", [*FOLDERS, *OTHERS])
def test_no_folder_holds_more_than_20_files(part):
    counts = Counter(file.parent.as_posix() for file in files_below(part))
    assert {folder: count for folder, count in counts.items() if count > 20 and folder not in FLAT} == {}
