"""Who attends to whom in dependency trees (DepCache, Algorithm 1)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch

from generator.composing.runs import Run
from protocol.dependency import Branch, DependencyTrees, TreePositions


class Forest:
    """Dependency trees with their places and positions in a prompt.

    ``runs`` are the places of the branches' tokens, and ``positions`` those that their first tokens have. ``roots`` are
    the branches without a parent. A ``front`` of the prompt is attended to by all.
    """

    def __init__(self, trees: DependencyTrees) -> None:
        self.branches: Sequence[Branch] = trees.branches
        self.front = trees.front
        self._counts = torch.tensor([branch.tokens for branch in trees.branches])
        ends = list(accumulate((branch.tokens for branch in trees.branches), initial=trees.start))
        self.runs = [Run(start, end) for start, end in pairwise(ends)]
        self.place = Run(trees.start, ends[-1])
        self.roots = [place for place, branch in enumerate(trees.branches) if branch.parent < 0]
        self.positions = [run.start for run in self.runs]
        if trees.positions is TreePositions.DEPTH:
            for place, parent in enumerate(branch.parent for branch in self.branches):
                behind = self.positions[parent] + self.branches[parent].tokens if parent >= 0 else trees.front
                self.positions[place] = behind

    def trees(self) -> Iterator[tuple[range, Run]]:
        """Each tree's branches, and the places of its tokens."""
        for first, behind in zip(self.roots, [*self.roots[1:], len(self.branches)], strict=True):
            yield range(first, behind), Run(self.runs[first].start, self.runs[behind - 1].end)

    def token_positions(self, device: torch.device) -> torch.Tensor:
        """The position of each token of the trees, shape [tokens]."""
        shifts = torch.tensor(self.positions) - torch.tensor([run.start for run in self.runs])
        places = torch.arange(self.place.start, self.place.end)
        return (places + shifts.repeat_interleave(self._counts)).to(device)

    @cached_property
    def branch_of_tokens(self) -> torch.Tensor:
        """The branch that each token of the trees belongs to, shape [tokens]."""
        return torch.arange(len(self.branches)).repeat_interleave(self._counts)

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """Which branches each branch's tokens attend to, shape [branches, branches]: its ancestors and itself."""
        # Of NumPy, because torch takes a multiple of the time for so little work.
        attended = np.eye(len(self.branches), dtype=np.bool_)
        for place, branch in enumerate(self.branches):
            if branch.parent >= 0:
                attended[place] |= attended[branch.parent]
        return torch.from_numpy(attended)

    def mask(self, branches: range) -> torch.Tensor:
        """Who attends to whom within one tree, shape [tokens, tokens]: row v has its ancestors and v itself."""
        own = slice(branches.start, branches.stop)
        ancestors = self.ancestors[own, own]
        of_token = torch.arange(len(branches)).repeat_interleave(self._counts[own])
        # An ancestor stands in front of a token. So this also makes a branch's own tokens attend causally.
        return ancestors[of_token][:, of_token].tril()
