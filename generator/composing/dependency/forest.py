"""Who attends to whom in dependency trees (DepCache, Algorithm 1), and which keys that takes in a forward pass."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from generator.composing.dependency.branch_cache import TokenKv
from generator.composing.runs import Run, positions_of
from protocol.dependency import Branch, DependencyTrees, TreePositions

_GROUP_TOKENS = 48
"""A group's tokens, if the front is short. Measured on a CPU: 32 to 64 take about as long."""


class Forest:
    """Dependency trees with their places and positions in a prompt.

    ``runs`` are the places of the branches' tokens, and ``positions`` those that their first tokens have. A ``front``
    of the prompt is attended to by all.
    """

    def __init__(self, trees: DependencyTrees) -> None:
        self.branches: Sequence[Branch] = trees.branches
        self.front = trees.front
        self._counts = torch.tensor([branch.tokens for branch in trees.branches])
        ends = list(accumulate((branch.tokens for branch in trees.branches), initial=trees.start))
        self.runs = [Run(start, end) for start, end in pairwise(ends)]
        self.place = Run(trees.start, ends[-1])
        self.positions = [run.start for run in self.runs]
        if trees.positions is TreePositions.DEPTH:
            for place, parent in enumerate(branch.parent for branch in self.branches):
                behind = self.positions[parent] + self.branches[parent].tokens if parent >= 0 else trees.front
                self.positions[place] = behind

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


class TreePass(NamedTuple):
    """A pass's tokens in groups of one size, each with the keys that any of its tokens attends to.

    ``context`` are the places, in the prompt with these ``blocks``, of the keys that are read from the KV cache. The
    pass's own keys are numbered after them. ``chosen`` [groups, keys] has the numbers of each group's keys. ``mask``
    [groups, tokens, keys] is 0 where a token attends to a key of its group, and minus infinity elsewhere.

    Groups are consecutive. The last one is padded with tokens that do not exist, and all are padded with keys that
    nothing attends to. The KV of the pass's tokens is put into ``computed``, too, unless that is None.
    """

    context: torch.Tensor
    chosen: torch.Tensor
    mask: torch.Tensor
    blocks: torch.Tensor
    computed: TokenKv | None


def tree_pass(
    forest: Forest, part: Sequence[Run], blocks: torch.Tensor, dtype: torch.dtype, computed: TokenKv | None = None
) -> TreePass:
    """The pass that computes these runs of the trees' tokens, whose ancestors are in place or among them.

    ``dtype`` is that of the attention.

    A token has few ancestors, but a tree has many tokens. So a group does not have its tree for keys: it has the
    prompt's front, the ancestors of its first token, and what stands between its first token and its last one.
    """
    own_tokens = positions_of(part, torch.device("cpu")) - forest.place.start
    ancestors, branch_of = forest.ancestors, forest.branch_of_tokens
    front = torch.arange(forest.front)
    places, masks = [], []
    for tokens in torch.split(own_tokens, _group_tokens(len(own_tokens), forest.front)):
        attended = ancestors[branch_of[tokens]]
        own = attended.any(0)[branch_of].nonzero()[:, 0]
        own = own[own <= tokens[-1]]
        # The second condition is for a branch's own tokens: ancestors come before a token anyway.
        in_tree = attended[:, branch_of[own]] & (own <= tokens[:, None])
        in_front = torch.ones(len(tokens), forest.front, dtype=torch.bool)
        places.append(torch.cat([front, own + forest.place.start]))
        masks.append(torch.cat([in_front, in_tree], 1))
    own_places = own_tokens + forest.place.start
    padded = pad_sequence(places, batch_first=True, padding_value=int(own_places[0]))
    # The first group has as many tokens as any. Tokens that do not exist attend to everything: a row of nothing but
    # minus infinity would give NaN.
    attends = torch.ones(len(masks), len(masks[0]), padded.shape[1], dtype=torch.bool)
    for number, of_group in enumerate(masks):
        tokens_of_group, keys_of_group = of_group.shape
        attends[number, :tokens_of_group] = False
        attends[number, :tokens_of_group, :keys_of_group] = of_group
    needed: torch.Tensor = torch.unique(padded)
    context = needed[torch.isin(needed, own_places, invert=True)]
    numbers = torch.empty(forest.place.end, dtype=torch.long)
    numbers[torch.cat([context, own_places])] = torch.arange(len(context) + len(own_places))
    device = blocks.device
    mask = torch.zeros(attends.shape, dtype=dtype, device=device).masked_fill_(~attends.to(device), -torch.inf)
    return TreePass(context.to(device), numbers[padded].to(device), mask, blocks, computed)


def _group_tokens(tokens: int, front: int) -> int:
    """The size of groups that share ``tokens`` nearly evenly."""
    # Each group has a copy of the front's keys, which must not outweigh what they are multiplied with.
    groups = -(-tokens // max(_GROUP_TOKENS, front // 4))
    return -(-tokens // groups)
