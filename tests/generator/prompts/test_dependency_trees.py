"""Paths as dependency trees: what paths begin with alike stands once, in pre-order."""

from generator.prompts.dependency_trees import dependency_trees
from protocol.dependency import DependencyTrees
from protocol.graph import Path, Source


def encode(text: str) -> tuple[int, ...]:
    """A token for each character."""
    return tuple(map(ord, text))


def path(*parts: str, contents: str = "") -> Path:
    """A path of entities and relations in turn. A letter of ``contents`` names the chunk that states each relation."""
    relations = parts[1::2]
    sources = tuple(Source("document", 0, content) for content in contents or "x" * len(relations))
    return Path(tuple(parts[::2]), relations, sources, 0.5)


def texts(paths: list[Path], *around: str) -> list[tuple[str, int]]:
    """The texts of the branches, and their parents."""
    trees = dependency_trees(paths, encode, *around)
    found, at = [], 0
    for branch in trees.branches:
        found.append(("".join(map(chr, trees.token_ids[at : at + branch.tokens])), branch.parent))
        at += branch.tokens
    assert at == len(trees.token_ids)
    return found


def test_what_paths_begin_with_stands_once():
    assert texts(
        [
            path("Alice", "-like->", "Titanic", "-type->", "Tragedy"),
            path("Bob", "-know->", "Alice"),
            path("Alice", "-like->", "Titanic", "<-direct-", "Cameron"),
            path("Alice", "-like->", "Rome"),
        ]
    ) == [
        ("\nAlice", -1),
        (" -like->", 0),
        (" Titanic", 1),
        (" -type->", 2),
        (" Tragedy", 3),
        (" <-direct-", 2),
        (" Cameron", 5),
        (" Rome", 1),
        ("\nBob", -1),
        (" -know->", 8),
        (" Alice", 9),
    ]


def test_branches_are_stated_by_the_chunks_of_all_paths_through_them():
    paths = [
        path("Alice", "-like->", "Titanic", "-type->", "Tragedy", contents="ab"),
        path("Alice", "-like->", "Rome", contents="c"),
        path("Alice", "-like->", "Titanic", "<-direct-", "Cameron", contents="ad"),
    ]
    trees = dependency_trees(paths, encode, "Facts:\n")
    # The heading, Alice, -like->, Titanic with its two relations, and Rome.
    assert ["".join(branch.stated_by) for branch in trees.branches] == ["", "ac", "ac", "a", "b", "b", "d", "d", "c"]


def test_trees_are_in_preorder_for_the_engine():
    paths = [path(f"root {n % 3}", f"-r{n % 2}->", f"middle {n % 5}", "-to->", f"leaf {n}") for n in range(30)]
    trees = dependency_trees(paths, encode)
    DependencyTrees(5, 5, trees.branches).check(len(trees.token_ids) + 6)
    assert sum(branch.parent < 0 for branch in trees.branches) == 3


def test_equal_paths_are_one_and_no_paths_are_no_trees():
    assert len(texts([path("a", "-b->", "c")] * 3)) == 3
    assert dependency_trees([], encode) is None
    assert dependency_trees([], encode, "Facts:\n", "\n") is None


def test_the_heading_is_a_branch_that_nothing_is_below():
    paths = [path("a", "-b->", "c"), path("d", "-e->", "f")]
    assert texts(paths, "Facts:\n", "\n") == [
        ("Facts:", -1),
        ("\na", -1),
        (" -b->", 1),
        (" c", 2),
        ("\nd", -1),
        (" -e->", 4),
        (" f", 5),
    ]
    assert dependency_trees(paths, encode, "Facts:\n", "\n").behind == encode("\n\n")


def test_an_entity_and_a_relation_of_one_name_stay_apart():
    assert texts([path("a", "b", "c"), path("a", "c", "b")]) == [
        ("\na", -1),
        (" b", 0),
        (" c", 1),
        (" c", 0),
        (" b", 3),
    ]


def test_a_branch_keeps_its_name_whatever_it_is():
    assert texts([path("\x02documents\x03", "-" * 500, "\u4e2d\u6587")])[1] == (" " + "-" * 500, 0)
