"""Which keys the tokens of dependency trees attend to in one forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from generator.composing.dependency.forest import Forest
from generator.composing.runs import Run, positions_of

_GROUP_TOKENS = 48
"""A group's tokens, if the front is short. Measured on a CPU: 32 to 64 take about as long."""


class TreePass(NamedTuple):
    """A pass's tokens in groups of one size, each with the keys that any of its tokens attends to.

    Groups are consecutive. The last one is padded with tokens that do not exist, and all are padded with keys that
    nothing attends to. ``places`` [groups, keys] are the keys' places in the prompt, whose ``blocks`` these are.
    ``mask`` [groups, tokens, keys] says which keys of its group a token attends to.
    """

    places: torch.Tensor
    mask: torch.Tensor
    blocks: torch.Tensor


def tree_pass(forest: Forest, part: Sequence[Run], blocks: torch.Tensor) -> TreePass:
    """The pass that computes these runs of the trees' tokens, whose ancestors are in place or among them.

    A token has few ancestors, but a tree has many tokens. So a group does not have its tree for keys: it has the
    prompt's front, the ancestors of its first token, and what stands between its first token and its last one.
    """
    computed = positions_of(part, torch.device("cpu")) - forest.place.start
    ancestors, branch_of = forest.ancestors, forest.branch_of_tokens
    front = torch.arange(forest.front)
    places, masks = [], []
    for tokens in torch.split(computed, _group_tokens(len(computed), forest.front)):
        attended = ancestors[branch_of[tokens]]
        own = attended.any(0)[branch_of].nonzero()[:, 0]
        own = own[own <= tokens[-1]]
        # The second condition is for a branch's own tokens: ancestors stand in front of a token anyway.
        in_tree = attended[:, branch_of[own]] & (own <= tokens[:, None])
        in_front = torch.ones(len(tokens), forest.front, dtype=torch.bool)
        places.append(torch.cat([front, own + forest.place.start]))
        masks.append(torch.cat([in_front, in_tree], 1))
    padded = pad_sequence(places, batch_first=True)
    # The first group has as many tokens as any.
    mask = torch.zeros(len(masks), len(masks[0]), padded.shape[1], dtype=torch.bool)
    for number, (tokens_mask, keys) in enumerate(zip(masks, places, strict=True)):
        mask[number, : len(tokens_mask), : len(keys)] = tokens_mask
    return TreePass(padded.to(blocks.device), mask.to(blocks.device), blocks)


def _group_tokens(tokens: int, front: int) -> int:
    """The size of groups that share ``tokens`` nearly evenly."""
    # Each group has a copy of the front's keys, which must not outweigh what they are multiplied with.
    groups = -(-tokens // max(_GROUP_TOKENS, front // 4))
    return -(-tokens // groups)
