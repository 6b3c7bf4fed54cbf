"""A branch of a dependency tree by its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.dependency import DependencyTrees, branch_keys


class KeyedBranch(NamedTuple):
    """A branch of ``tokens`` tokens, which the chunks with the content hashes ``stated_by`` state.

    ``parent`` is its parent's place among the prompt's branches, -1 for a root. Branches of one ``key`` have the same
    tokens behind the same ancestors, in one namespace.
    """

    key: bytes
    tokens: int
    parent: int
    stated_by: tuple[str, ...] = ()


def keyed(namespace: str, trees: DependencyTrees, token_ids: Sequence[int]) -> tuple[KeyedBranch, ...]:
    """The branches of a prompt's ``trees``; the whole prompt has these ``token_ids``."""
    keys = branch_keys(namespace, trees, token_ids)
    return tuple(
        [
            KeyedBranch(key, branch.tokens, branch.parent, branch.stated_by)
            for key, branch in zip(keys, trees.branches, strict=True)
        ]
    )
