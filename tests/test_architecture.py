"""docs/architecture.md names every package. Every path that it and its detail pages name exists."""

import ast
import re
from pathlib import Path

import pytest
from packages import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", PAGE))
NAMED_PATHS = {text for text in QUOTED if re.fullmatch(r"[\w.-]+/[\w./-]*|[\w-]+\.(toml|md|py|yaml|lock)", text)}
# The pages that architecture.md links for details. They also name files of a stack's data, which do not exist here.
DETAIL_PAGES = ("configuration", "failures", "graph", "knowledge-tree", "retrieval", "speculation", "storage")
_PAGES = ("*.md", "docs/**/*.md", "helm/*/*.md", "lab/**/*.md", "contrib/*/*.md")
PAGES = [page.relative_to(ROOT) for pattern in _PAGES for page in ROOT.glob(pattern)]


def _folders() -> list[str]:
    inits = (path for folder in PACKAGES.values() for path in folder.rglob("__init__.py"))
    return sorted(path.parent.relative_to(ROOT).as_posix() for path in inits)


def _paths_in(text: str) -> set[str]:
    return {
        path
        for path in re.findall(r"`([^`\n]+)`", text)
        if re.match(rf"({'|'.join(PACKAGES)}|docs|lab|contrib)/", path)
    }


def _changes() -> dict[str, set[str]]:
    section = PAGE.partition("\n## Where do I change ...?\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", section, re.MULTILINE)
    return {change: _paths_in(files) for change, files in rows if change != "change"}


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _exists(path: str) -> bool:
    found = ROOT / path
    return found.is_dir() if path.endswith("/") else found.is_file()


def test_the_import_rules_cover_every_top_level_package():
    there = {path.parent for path in (*ROOT.glob("*/__init__.py"), *ROOT.glob("lab/*/__init__.py"))}
    assert there <= set(PACKAGES.values())


@pytest.mark.parametrize("folder", _folders())
def test_every_folder_says_what_is_in_it(folder):
    said = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8")))
    assert said
    assert len(said.split()) > 2


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
def test_every_package_of_the_product_is_named(package):
    assert f"| `{package}/` |" in PAGE


@pytest.mark.parametrize("path", sorted(NAMED_PATHS))
def test_every_named_path_exists(path):
    assert _exists(path)


@pytest.mark.parametrize("page", DETAIL_PAGES)
def test_every_path_named_by_a_detail_page_exists(page):
    named = _paths_in((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert [path for path in sorted(named) if not _exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_has_a_target(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if link.startswith("http"):
            continue
        found = (ROOT / page).parent / target if target else ROOT / page
        assert found.exists(), link
        assert not anchor or anchor in _anchors(found), link


def test_table_of_changes_covers_common_changes():
    assert len(_changes()) >= 15


@pytest.mark.parametrize(("change", "paths"), _changes().items())
def test_each_change_names_existing_files(change, paths):
    assert paths, change
    assert [path for path in sorted(paths) if not _exists(path)] == []


def test_page_starts_with_the_life_of_a_query():
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
