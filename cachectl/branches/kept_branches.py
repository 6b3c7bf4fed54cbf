"""Which branches of dependency trees the instances keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cachectl.branches.branch_tree import BranchTree
from cachectl.branches.keyed_branch import KeyedBranch
from cachectl.policies.base import ReplacementPolicy


class KeptBranches:
    """The branches that each instance keeps, of at most ``room`` tokens, by a policy that ``create_policy`` creates.

    The KV itself lies with the engines, which drop what a plan tells them to. They find what they have, whatever is
    expected here. If their own room is short, they drop the least recently used branches. ``cost(cached, new)`` gives
    the seconds of a prefill.
    """

    def __init__(
        self, create_policy: Callable[[], ReplacementPolicy], room: int, cost: Callable[[int, int], float]
    ) -> None:
        self._create_policy = create_policy
        self._room = room
        self._cost = cost
        self._trees: dict[str, BranchTree] = {}

    def found(self, instance: str, branches: Sequence[KeyedBranch]) -> int:
        """Return how many tokens of a prompt's branches the instance keeps."""
        tree = self._trees.get(instance)
        return 0 if tree is None else tree.found(branches)

    def keep(
        self, instance: str, namespace: str, branches: Sequence[KeyedBranch], question_tokens: int
    ) -> tuple[bytes, ...]:
        """Note that an instance computes these branches, or uses them, in front of so many ``question_tokens``.

        They are in pre-order. Returns the keys of the branches that it drops for them.
        """
        if not branches or not self._room:
            return ()
        tree = self._trees.get(instance)
        if tree is None:
            tree = self._trees[instance] = BranchTree(self._create_policy(), self._room, self._cost)
        return tuple(tree.keep(namespace, branches, question_tokens))

    def take_back(self, instance: str, branches: Sequence[KeyedBranch]) -> None:
        """Forget what an instance was to compute for a prompt and did not, unless others have asked for it since."""
        tree = self._trees.get(instance)
        if tree is not None:
            tree.take_back(branches)

    def reconsider(self, keys: Sequence[bytes]) -> None:
        """Update branches that are needed less than before: a request that waited for them has left."""
        for tree in self._trees.values():
            tree.reconsider(keys)

    def forget(self, instance: str) -> None:
        """Forget what an instance kept: it has ended, or its engine has."""
        self._trees.pop(instance, None)

    def delete(self, contents: Collection[str], namespace: str | None) -> None:
        """Forget what only chunks with these content hashes state, in one namespace, or in all: engines drop it."""
        for tree in self._trees.values():
            tree.delete(contents, namespace)

    def clear(self) -> None:
        """Forget all branches: engines drop everything."""
        self._trees.clear()

    def check_integrity(self) -> None:
        """Assert the invariants of all trees."""
        for tree in self._trees.values():
            tree.check_integrity()


def _no_policy() -> ReplacementPolicy:
    raise AssertionError("nothing is kept, so nothing is chosen")


def _no_cost(_cached: int, _new: int) -> float:
    return 0.0


NO_BRANCHES = KeptBranches(_no_policy, 0, _no_cost)
"""Instances that keep none."""
