"""Dependency attention: facts as trees, in which a token attends to its ancestors (DepCache, Algorithm 1)."""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

import msgspec

from protocol.errors import InvalidRequest


class GraphAttention(StrEnum):
    """How a prompt attends to its facts.

    ``self``: to every path in full, as to any text. ``dependency``: within trees, where the engine can. ``auto``: as
    ``dependency`` where that has passed its gate, else as ``self``.
    """

    SELF = "self"
    DEPENDENCY = "dependency"
    AUTO = "auto"


class TreePositions(StrEnum):
    """Which positions the tokens of dependency trees have.

    ``preorder``: those of their places in the prompt (DepCache). ``depth``: those after their ancestors, as if each
    path stood alone after the tokens that all branches attend to. KV at them never has to move.
    """

    PREORDER = "preorder"
    DEPTH = "depth"


class Branch(msgspec.Struct, frozen=True, array_like=True):
    """An entity or a relation in a dependency tree: a number of ``tokens`` after those of its ``parent``.

    The parent is the place of another branch in front of this one, or -1 for a root. The branch is ``stated_by`` the
    chunks with these content hashes: as long as one of them is not deleted, its KV may be kept. No chunk states a
    branch that is the prompt's own, such as the heading of the facts.
    """

    tokens: int
    parent: int
    stated_by: tuple[str, ...] = ()


class DependencyTrees(msgspec.Struct, frozen=True):
    """Where a prompt has dependency trees: from the token ``start`` on, the ``branches`` in pre-order.

    Each branch attends to the prompt's first ``front`` tokens, its ancestors and itself. Everything after the trees
    attends to all before it. With ``reuse``, branches take the KV that an earlier prompt computed for them.
    ``dropped`` are the keys of kept branches that leave for these, each after what stood below it.
    """

    start: int
    front: int
    branches: tuple[Branch, ...]
    positions: TreePositions = TreePositions.DEPTH
    reuse: bool = True
    dropped: tuple[bytes, ...] = ()

    @property
    def end(self) -> int:
        """The place after the last token of the trees."""
        return self.start + sum(branch.tokens for branch in self.branches)

    def check(self, prompt_tokens: int) -> None:
        """Raise InvalidRequest unless the branches are trees in pre-order within a prompt of ``prompt_tokens``."""
        if not 0 <= self.front <= self.start or not self.start < self.end < prompt_tokens:
            raise InvalidRequest("dependency trees stand behind the prompt's front, and in front of its end", "trees")
        path: list[int] = []
        for place, branch in enumerate(self.branches):
            while path and path[-1] != branch.parent:
                path.pop()
            if branch.tokens < 1 or (not path and branch.parent != -1):
                raise InvalidRequest(f"branch {place} of the dependency trees is not in pre-order, or empty", "trees")
            path.append(place)


class DepPrompt(msgspec.Struct, frozen=True):
    """A prompt's facts as dependency trees: the ``token_ids`` of their ``branches``, in pre-order.

    They replace the prompt's segment of facts, which has every path in full. Its tokens ``behind`` the last path come
    after them.
    """

    token_ids: tuple[int, ...]
    branches: tuple[Branch, ...]
    behind: tuple[int, ...] = ()


_KEY_BYTES = 16


def branch_keys(namespace: str, trees: DependencyTrees, token_ids: Sequence[int]) -> list[bytes]:
    """The keys of a prompt's branches; the whole prompt has these ``token_ids``.

    Two branches have one key in every process if their tokens are the same after the same ancestors and the same
    front, in one namespace and at the same kind of positions: then they have the same KV.
    """
    top = blake2b(f"{trees.positions}\0{namespace}\0".encode(), digest_size=_KEY_BYTES)
    top.update(_packed(token_ids[: trees.front]))
    keys: list[bytes] = []
    start = trees.start
    for branch in trees.branches:
        above = keys[branch.parent] if branch.parent >= 0 else top.digest()
        own = _packed(token_ids[start : start + branch.tokens])
        keys.append(blake2b(own, key=above, digest_size=_KEY_BYTES).digest())
        start += branch.tokens
    return keys


def _packed(token_ids: Sequence[int]) -> bytes:
    return array("q", token_ids).tobytes()
