"""Computes a prompt's dependency trees, or takes the KV that an earlier prompt computed (DepCache, Algorithm 2)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.codec import LayerKv
from generator.composing.composer import Composed
from generator.composing.dependency.branch_cache import BranchCache, BranchKv, ComputedBranch
from generator.composing.dependency.forest import Forest
from generator.composing.dependency.tree_attention import TreeAttention, in_place_of_own
from generator.composing.dependency.tree_pass import tree_pass
from generator.composing.partial_forward import PartialForward
from generator.composing.runs import Run, positions_of, slices
from generator.composing.slots import slots_of
from protocol.dependency import DependencyTrees, branch_keys


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
        self._attentions = [TreeAttention(layer) for layer in layers]
        self._forward = forward
        self._kept = kept
        self._page_tokens = page_tokens
        self._step_tokens = step_tokens

    @property
    def deletions(self) -> int:
        """How often documents were deleted."""
        return self._kept.deletions

    def forget(self, is_deleted: Callable[[str, tuple[str, ...]], bool]) -> None:
        """Drop what is kept of deleted chunks' facts. May be called from any thread."""
        self._kept.forget(is_deleted)

    def steps(self, task: TreeTask) -> Iterator[Composed | None]:
        """Compute what stands in front of a prompt's trees, and the trees, in steps. The last one yields the result."""
        task.trees.check(len(task.token_ids))
        in_front = [Run(task.exact, task.trees.start)] if task.exact < task.trees.start else []
        for part in slices(in_front, self._step_tokens):
            self._forward.compute(task.token_ids, part, task.blocks)
            yield None
        forest = Forest(task.trees)
        ids = task.token_ids.tolist()
        self._kept.drop(task.trees.dropped)
        keys = branch_keys(task.namespace, task.trees, ids)
        found = self._kept.find(keys) if task.trees.reuse else [None] * len(keys)
        hits = [place for place, kv in enumerate(found) if kv is not None]
        self._place(task, forest, [(place, kv) for place, kv in enumerate(found) if kv is not None])
        missing = [place for place, kv in enumerate(found) if kv is None]
        positions = forest.token_positions(task.blocks.device)
        for part in slices([forest.runs[place] for place in missing], self._step_tokens):
            yield None
            self._compute(task, forest, positions, part)
        if task.trees.reuse:
            parents = [keys[branch.parent] if branch.parent >= 0 else None for branch in forest.branches]
            stated_by = [branch.stated_by for branch in forest.branches]
            computed = map(ComputedBranch, keys, parents, stated_by, self._read(task, forest, missing))
            self._kept.add(task.namespace, list(computed), task.deletions)
        yield Composed(sum(forest.branches[place].tokens for place in hits), 0, 0.0)

    def _place(self, task: TreeTask, forest: Forest, hits: Sequence[tuple[int, BranchKv]]) -> None:
        """Write the KV of branches into their places, moved to their positions there."""
        if not hits:
            return
        device = task.blocks.device
        slots = self._slots([forest.runs[place] for place, _ in hits], task.blocks)
        counts = torch.tensor([forest.branches[place].tokens for place, _ in hits])
        moves = torch.tensor([forest.positions[place] - kv.position for place, kv in hits])
        by: int | torch.Tensor = moves.repeat_interleave(counts).to(device) if moves.any() else 0
        keys = torch.cat([kv.keys for _, kv in hits], 1).to(device)
        values = torch.cat([kv.values for _, kv in hits], 1).to(device)
        for layer, layer_keys, layer_values in zip(self._layers, keys, values, strict=True):
            layer.write(LayerKv(layer.rotation.moved(layer_keys, by), layer_values), slots)

    def _compute(self, task: TreeTask, forest: Forest, positions: torch.Tensor, part: Sequence[Run]) -> None:
        """Compute runs of the trees' tokens, whose ancestors are in place or among them."""
        device = task.blocks.device
        places = positions_of(part, device)
        attention = tree_pass(forest, part, task.blocks)
        with in_place_of_own(self._attentions):
            self._forward.compute_with(
                task.token_ids[places],
                positions[places - forest.place.start],
                places,
                task.blocks,
                attention,
            )

    def _read(self, task: TreeTask, forest: Forest, places: Sequence[int]) -> list[BranchKv | None]:
        """The KV of the branches at these places out of the engine's blocks; None for the others."""
        found: list[BranchKv | None] = [None] * len(forest.branches)
        if not places:
            return found
        runs = [forest.runs[place] for place in places]
        positions = positions_of(runs, task.blocks.device)
        read = [layer.kv(task.blocks, positions) for layer in self._layers]
        keys = torch.stack([kv.keys for kv in read]).cpu()
        values = torch.stack([kv.values for kv in read]).cpu()
        counts = [run.tokens for run in runs]
        for place, end, count in zip(places, accumulate(counts), counts, strict=True):
            own = slice(end - count, end)
            # A part of a tensor would keep all of it in memory.
            found[place] = BranchKv(keys[:, own].clone(), values[:, own].clone(), forest.positions[place])
        return found

    def _slots(self, runs: Sequence[Run], blocks: torch.Tensor) -> torch.Tensor:
        return slots_of(positions_of(runs, blocks.device), blocks, self._page_tokens)
