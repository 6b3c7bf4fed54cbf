"""Which branches of dependency trees the instances keep, as far as their requests tell."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.dependency import Branch


class KeyedBranch(NamedTuple):
    """A branch behind the same ancestors and the same front has the same ``key``. It has so many ``tokens``."""

    key: int
    tokens: int


class KeptBranches:
    """The branches that each instance has computed: the latest ones, of at most ``room`` tokens.

    Engines keep the KV of branches for themselves, and drop the least recently used leaves as this does. So it is an
    estimate, for the order of requests and for the choice of an instance. Nothing else depends on it.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        # By instance: the tokens of each branch by namespace and key, the least recently used first.
        self._kept: dict[str, OrderedDict[tuple[str, int], int]] = {}
        self._tokens: dict[str, int] = {}

    def found(self, instance: str, namespace: str, branches: Sequence[KeyedBranch]) -> int:
        """Return how many tokens of a prompt's branches the instance keeps."""
        kept = self._kept.get(instance)
        if kept is None:
            return 0
        return sum([branch.tokens for branch in branches if (namespace, branch.key) in kept])

    def keep(self, instance: str, namespace: str, branches: Sequence[KeyedBranch]) -> None:
        """Note that an instance has computed these branches, or used them. They are in pre-order."""
        if not branches or not self._room:
            return
        kept = self._kept.setdefault(instance, OrderedDict())
        tokens = self._tokens.get(instance, 0)
        # A branch counts as used later than what is below it, so leaves leave first.
        for branch in reversed(branches):
            key = (namespace, branch.key)
            if key not in kept:
                tokens += branch.tokens
                kept[key] = branch.tokens
            kept.move_to_end(key)
        while tokens > self._room:
            tokens -= kept.popitem(last=False)[1]
        self._tokens[instance] = tokens

    def forget(self, instance: str) -> None:
        """Forget what an instance kept: it has ended, or its engine has."""
        self._kept.pop(instance, None)
        self._tokens.pop(instance, None)

    def clear(self, namespace: str | None = None) -> None:
        """Forget the branches of a namespace, or of all: engines drop them when a document is deleted."""
        for instance, kept in self._kept.items():
            gone = [key for key in kept if namespace is None or key[0] == namespace]
            for key in gone:
                self._tokens[instance] -= kept.pop(key)


def keyed(front: Sequence[int], branches: Sequence[Branch], token_ids: Sequence[int]) -> tuple[KeyedBranch, ...]:
    """Name the branches of a prompt's trees, whose tokens are ``token_ids``, behind the tokens of its ``front``."""
    keys: list[int] = []
    top, at = hash(tuple(front)), 0
    for branch in branches:
        above = top if branch.parent < 0 else keys[branch.parent]
        keys.append(hash((above, *token_ids[at : at + branch.tokens])))
        at += branch.tokens
    return tuple([KeyedBranch(key, branch.tokens) for key, branch in zip(keys, branches, strict=True)])
