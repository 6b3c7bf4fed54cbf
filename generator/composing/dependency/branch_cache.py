"""Keeps branches' KV for later prompts: a radix tree for each root entity (DepCache, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer, LayerKv
from generator.composing.deletions import Deletions, IsDeleted, left_by


class TokenKv(NamedTuple):
    """KV of the same tokens in each of the ``layers``."""

    layers: tuple[LayerKv, ...]

    @classmethod
    def empty(cls, tokens: int, layers: Sequence[AttentionLayer], device: torch.device) -> "TokenKv":
        """Memory for ``tokens`` in these layers, not yet written."""
        return cls(tuple([_empty(tokens, layer, device) for layer in layers]))

    @property
    def tokens(self) -> int:
        """How many tokens they are."""
        return len(self.layers[0].keys)

    @classmethod
    def joined(cls, parts: Sequence["TokenKv"]) -> "TokenKv":
        """The tokens of one or several parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        of_layers = zip(*(part.layers for part in parts), strict=True)
        return cls(
            tuple([LayerKv(torch.cat([kv.keys for kv in of]), torch.cat([kv.values for kv in of])) for of in of_layers])
        )

    def rows(self, numbers: torch.Tensor) -> "TokenKv":
        """A copy of the rows with these numbers."""
        chosen = [
            LayerKv(keys.index_select(0, numbers), values.index_select(0, numbers)) for keys, values in self.layers
        ]
        return TokenKv(tuple(chosen))

    def write(self, numbers: torch.Tensor, kv: "TokenKv") -> None:
        """Write ``kv`` into the rows with these numbers."""
        for own, others in zip(self.layers, kv.layers, strict=True):
            own.keys.index_copy_(0, numbers, others.keys)
            own.values.index_copy_(0, numbers, others.values)

    def to(self, device: torch.device) -> "TokenKv":
        """The same KV on a device; itself if it is there already."""
        return TokenKv(tuple([LayerKv(keys.to(device), values.to(device)) for keys, values in self.layers]))


def _empty(tokens: int, layer: AttentionLayer, device: torch.device) -> LayerKv:
    shape = layer.shape
    keys = torch.empty(tokens, shape.heads, shape.key_dim, dtype=layer.dtype, device=device)
    return LayerKv(keys, torch.empty(tokens, shape.heads, shape.value_dim, dtype=layer.dtype, device=device))


class KeptBranch(NamedTuple):
    """Where a branch's KV is kept: the ``rows`` of its tokens. Its first token had the ``position``."""

    rows: tuple[int, ...]
    position: int


class PromptBranch(NamedTuple):
    """A branch of a prompt by its ``key`` (`protocol.dependency.branch_keys`), and its parent's; None for a root.

    Chunks with the content hashes ``stated_by`` state it. Its first token has the ``position``. ``tokens`` are its
    tokens' places among the prompt's computed ones; none if it was found, and not computed.
    """

    key: bytes
    parent: bytes | None
    stated_by: tuple[str, ...]
    position: int
    tokens: range


@dataclass(slots=True, eq=False)
class _Kept:
    """A branch that is kept. ``used`` is when it was last used."""

    namespace: str
    key: bytes
    parent: "_Kept | None"
    branch: KeptBranch
    used: int
    stated_by: frozenset[str] = frozenset()
    below: "set[_Kept]" = field(default_factory=set)


class BranchCache:
    """Branches' KV in ``memory``, each after its parent. One thread uses it, in the same order on each rank.

    Plans say what leaves (``drop``). If that does not make the room, the leaf whose last use is the longest ago leaves.
    """

    def __init__(self, memory: TokenKv) -> None:
        self._memory = memory
        # The lowest last, so that memory which was never needed is never touched.
        self._free = list(range(memory.tokens))[::-1]
        self._uses = 0
        self._kept: dict[bytes, _Kept] = {}
        self._deletions = Deletions()

    @property
    def deletions(self) -> int:
        """How often documents were deleted."""
        return self._deletions.count

    def find(self, keys: Sequence[bytes]) -> list[KeptBranch | None]:
        """Those of the branches that are kept."""
        self._uses += 1
        found = [self._kept.get(key) for key in keys]
        for kept in found:
            if kept is not None:
                kept.used = self._uses
        return [kept.branch if kept is not None else None for kept in found]

    def read(self, branches: Sequence[KeptBranch]) -> TokenKv:
        """A copy of the KV of found branches' tokens, one branch after the other.

        Found branches can be read until the next ``add``, even if they are dropped or deleted meanwhile.
        """
        return self._memory.rows(_rows(branches))

    def add(self, namespace: str, branches: Sequence[PromptBranch], computed: TokenKv, deletions: int) -> None:
        """Keep a prompt's branches, in pre-order, as far as there is room. One whose parent is not kept is left out.

        ``computed`` is the KV of the tokens that the prompt has computed. Branches that were deleted after the first
        ``deletions`` are not kept.
        """
        branches = self._not_deleted(namespace, branches, deletions)
        self._uses += 1
        missing: dict[bytes, PromptBranch] = {}
        for branch in branches:
            kept = self._kept.get(branch.key)
            if kept is not None:
                kept.used = self._uses
            elif branch.tokens:
                missing.setdefault(branch.key, branch)
        self._make_room(sum(len(branch.tokens) for branch in missing.values()))
        new, chosen = self._new(namespace, list(missing.values()))
        whole = len(chosen) == computed.tokens
        kv = computed if whole else computed.rows(torch.tensor(chosen, dtype=torch.long))
        self._memory.write(_rows([kept.branch for kept in new]), kv)
        del self._free[len(self._free) - len(chosen) :]
        for kept in new:
            self._kept[kept.key] = kept
            if kept.parent is not None:
                kept.parent.below.add(kept)
        for branch in branches:
            known = self._kept.get(branch.key)
            if known is not None:
                known.stated_by = known.stated_by.union(branch.stated_by)

    def drop(self, keys: Sequence[bytes]) -> None:
        """Drop branches, with what is kept below them. Those that are not kept are ignored."""
        for key in keys:
            kept = self._kept.get(key)
            if kept is not None:
                self._remove(kept)

    def forget(self, is_deleted: IsDeleted) -> None:
        """Drop what only deleted chunks state, and what is below it."""
        self._deletions.add(is_deleted)
        for key, kept in list(self._kept.items()):
            # It may have gone with the branch above it.
            if key not in self._kept:
                continue
            left = left_by(is_deleted, kept.namespace, kept.stated_by)
            if left is None:
                self._remove(kept)
            else:
                kept.stated_by = frozenset(left)

    def _not_deleted(self, namespace: str, branches: Sequence[PromptBranch], deletions: int) -> list[PromptBranch]:
        """The branches that some chunk still states after all but the first ``deletions``, with these chunks."""
        kept = []
        for branch in branches:
            left = self._deletions.left_since(deletions, namespace, branch.stated_by)
            if left is not None:
                kept.append(branch._replace(stated_by=tuple(left)))
        return kept

    def _new(self, namespace: str, branches: Sequence[PromptBranch]) -> tuple[list[_Kept], list[int]]:
        """New entries for those branches that fit, on the last of the free rows, and the places of their tokens."""
        new: dict[bytes, _Kept] = {}
        chosen: list[int] = []
        for key, above, _, position, tokens in branches:
            parent = None if above is None else self._kept.get(above) or new.get(above)
            room = len(self._free) - len(chosen)
            if len(tokens) <= room and (above is None or parent is not None):
                rows = tuple(self._free[room - len(tokens) : room])
                new[key] = _Kept(namespace, key, parent, KeptBranch(rows, position), self._uses)
                chosen += tokens
        return list(new.values()), chosen

    def _make_room(self, tokens: int) -> None:
        """Make room for ``tokens``, but not at the cost of what is in use."""
        if tokens <= len(self._free):
            return
        leaves = [(kept.used, key, kept) for key, kept in self._kept.items() if not kept.below]
        heapify(leaves)
        while tokens > len(self._free) and leaves:
            used, _, leaf = heappop(leaves)
            if used == self._uses:
                return
            self._remove(leaf)
            above = leaf.parent
            if above is not None and not above.below:
                heappush(leaves, (above.used, above.key, above))

    def _remove(self, top: _Kept) -> None:
        """Remove a branch and all below it."""
        if top.parent is not None:
            top.parent.below.discard(top)
        going = [top]
        while going:
            kept = going.pop()
            going += kept.below
            del self._kept[kept.key]
            self._free += kept.branch.rows


def _rows(branches: Sequence[KeptBranch]) -> torch.Tensor:
    return torch.tensor([row for branch in branches for row in branch.rows], dtype=torch.long)
