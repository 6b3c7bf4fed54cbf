"""Turns paths of a knowledge graph into dependency trees (DepCache, Algorithm 1).

The paths of one root entity become a prefix tree, in which an entity or a relation that several paths begin with stands
once:

    Alice -like-> Titanic -type-> Tragedy        Alice ── -like-> ── Titanic ─┬─ -type-> ── Tragedy
    Alice -like-> Titanic <-direct- Cameron                                   └─ <-direct- ── Cameron
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.dependency import Branch, DepPrompt
from protocol.graph import Path

Encode: TypeAlias = Callable[[str], tuple[int, ...]]
"""Tokenises a text on its own."""


@dataclass(slots=True)
class _Node:
    """An entity or a relation, and what the paths through it go on with, in the order of the paths.

    ``stated_by`` has the content hashes of the chunks that the paths have it from, in this order, too.
    """

    children: "dict[str, _Node]" = field(default_factory=dict)
    stated_by: dict[str, None] = field(default_factory=dict)


def dependency_trees(paths: Sequence[Path], encode: Encode, heading: str = "", end: str = "") -> DepPrompt | None:
    """The trees of paths, roots in the order of their first paths; None without any.

    Entities and relations are tokenised each on its own, so that no token reaches over a branch's end. ``heading`` and
    ``end`` stand around them; each tree begins a new line, so the heading ends none. The heading is a branch, too, so
    that it is not computed again for each prompt.
    """
    if not paths:
        return None
    top = _Node()
    if heading:
        # No root is called like this: they begin with a new line.
        top.children[heading.removesuffix("\n")] = _Node()
    for path in paths:
        node = top
        for text, content in zip(parts_of(path), _contents_of(path), strict=True):
            node = node.children.setdefault(text, _Node())
            node.stated_by[content] = None
    token_ids: list[int] = []
    branches: list[Branch] = []
    for text, node, parent in _preorder(top):
        tokens = encode(text)
        token_ids += tokens
        branches.append(Branch(len(tokens), parent, tuple(node.stated_by)))
    return DepPrompt(tuple(token_ids), tuple(branches), encode(f"\n{end}"))


def parts_of(path: Path) -> Iterator[str]:
    """The texts of a path's entities and relations, the root's on a new line."""
    root, *entities = (" ".join(entity.split()) for entity in path.entities)
    yield f"\n{root}"
    for relation, entity in zip(path.relations, entities, strict=True):
        yield f" {' '.join(relation.split())}"
        yield f" {entity}"


def _contents_of(path: Path) -> Iterator[str]:
    """The content hash of the chunk that each of a path's parts is told from, in the order of ``parts_of``.

    A relation is told with the entity that it leads to, and the root with the first relation.
    """
    yield path.sources[0].content_hash
    for source in path.sources:
        yield from (source.content_hash, source.content_hash)


def _preorder(top: _Node) -> Iterator[tuple[str, _Node, int]]:
    """Each node with its text and the place of its parent, -1 for a root."""
    waiting = [(text, node, -1) for text, node in reversed(top.children.items())]
    place = 0
    while waiting:
        text, node, parent = waiting.pop()
        yield text, node, parent
        waiting += [(below, child, place) for below, child in reversed(node.children.items())]
        place += 1
