"""Computes a prompt's dependency trees, or takes the KV that an earlier prompt computed (DepCache, Algorithm 2)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer, LayerKv, slots_of
from generator.composing.dependency.branch_cache import BranchCache, KeptBranch, PromptBranch, TokenKv
from generator.composing.dependency.forest import Forest, tree_pass
from generator.composing.dependency.tree_attention import TreeAttention
from generator.composing.partial_forward import PartialForward
from generator.composing.runs import Run, positions_of, slices
from generator.connector.messages import Composed
from protocol.dependency import DependencyTrees, branch_keys

_MAIN_MEMORY = torch.device("cpu")


class TreeTask(NamedTuple):
    """A prompt in an engine's ``blocks``, with ``trees``. Its first ``exact`` tokens are in place.

    Before the task was begun, documents were deleted ``deletions`` times.
    """

    namespace: str
    token_ids: torch.Tensor
    blocks: torch.Tensor
    exact: int
    trees: DependencyTrees
    deletions: int


class TreeComposer:
    """Composes prompts with dependency trees on an engine's ``layers``, at most ``step_tokens`` tokens at a time.

    The branches' KV that is ``kept`` for later prompts is used, and added to.

    Raises ConfigError if the layers' attention cannot be that of trees.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        forward: PartialForward,
        kept: BranchCache,
        page_tokens: int,
        step_tokens: int,
    ) -> None:
        self._layers = layers
        self._attentions = [TreeAttention(number, layer) for number, layer in enumerate(layers)]
        self._forward = forward
        self.kept = kept
        self._page_tokens = page_tokens
        self._step_tokens = step_tokens

    def steps(self, task: TreeTask) -> Iterator[Composed | None]:
        """Compute what comes before a prompt's trees, and the trees, in steps. The last one yields the result."""
        task.trees.check(len(task.token_ids))
        in_front = [Run(task.exact, task.trees.start)] if task.exact < task.trees.start else []
        for part in slices(in_front, self._step_tokens):
            self._forward.compute(task.token_ids, part, task.blocks)
            yield None
        forest = Forest(task.trees)
        ids = task.token_ids.tolist()
        self.kept.drop(task.trees.dropped)
        keys = branch_keys(task.namespace, task.trees, ids)
        found = self.kept.find(keys) if task.trees.reuse else [None] * len(keys)
        hits = [(place, kept) for place, kept in enumerate(found) if kept is not None]
        self._place(task, forest, hits)
        missing = [forest.runs[place] for place, kept in enumerate(found) if kept is None]
        computed = []
        positions = forest.token_positions(task.blocks.device)
        for part in slices(missing, self._step_tokens):
            yield None
            own = self._room_for(part) if task.trees.reuse else None
            self._compute(task, forest, positions, part, own)
            # Not all of it stays on a GPU, whose memory is the engine's.
            computed += [] if own is None else [own.to(_MAIN_MEMORY)]
        if task.trees.reuse:
            kv = TokenKv.joined(computed or [TokenKv.empty(0, self._layers, _MAIN_MEMORY)])
            self.kept.add(task.namespace, branches_of(forest, keys, found), kv, task.deletions)
        yield Composed(sum(forest.branches[place].tokens for place, _ in hits), 0, 0.0)

    def _place(self, task: TreeTask, forest: Forest, hits: Sequence[tuple[int, KeptBranch]]) -> None:
        """Write the KV of branches into their places, moved to their positions there."""
        if not hits:
            return
        device = task.blocks.device
        places = positions_of([forest.runs[place] for place, _ in hits], device)
        slots = slots_of(places, task.blocks, self._page_tokens)
        counts = torch.tensor([forest.branches[place].tokens for place, _ in hits])
        moves = torch.tensor([forest.positions[place] - kept.position for place, kept in hits])
        by: int | torch.Tensor = moves.repeat_interleave(counts).to(device) if moves.any() else 0
        kv = self.kept.read([kept for _, kept in hits]).to(device)
        for layer, (keys, values) in zip(self._layers, kv.layers, strict=True):
            layer.write(LayerKv(layer.rotation.moved(keys, by), values), slots)

    def _compute(
        self, task: TreeTask, forest: Forest, positions: torch.Tensor, part: Sequence[Run], computed: TokenKv | None
    ) -> None:
        """Compute runs of the trees' tokens, whose ancestors are in place or among them."""
        places = positions_of(part, task.blocks.device)
        attention = tree_pass(forest, part, task.blocks, self._layers[0].dtype, computed)
        with ExitStack() as in_place:
            for layer in self._attentions:
                in_place.enter_context(layer.in_place_of_own())
            self._forward.compute_with(
                task.token_ids[places],
                positions[places - forest.place.start],
                places,
                task.blocks,
                attention,
            )

    def _room_for(self, runs: Sequence[Run]) -> TokenKv:
        return TokenKv.empty(sum(run.tokens for run in runs), self._layers, self._forward.device)


def branches_of(forest: Forest, keys: Sequence[bytes], found: Sequence[KeptBranch | None]) -> list[PromptBranch]:
    """A prompt's branches, of which those that were not ``found`` were computed in their order."""
    branches = []
    done = 0
    for place, (key, branch) in enumerate(zip(keys, forest.branches, strict=True)):
        tokens = range(done, done + branch.tokens) if found[place] is None else range(0)
        parent = keys[branch.parent] if branch.parent >= 0 else None
        branches.append(PromptBranch(key, parent, branch.stated_by, forest.positions[place], tokens))
        done += len(tokens)
    return branches
