"""The GPU tier: nodes whose KV stays in the engine's own blocks, held there by reference.

Deleted documents are also found in blocks that nobody holds (``BlockOwners``).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING

from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.scheduler.request_blocks import NULL_BLOCK, PlacedDocuments
from generator.connector.step_jobs import Purge
from protocol.kv import HeldNode, KvNode, Paging

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


@dataclass(slots=True)
class _Held:
    """A held node: its blocks in the order of its pages, and the held nodes right after it."""

    node: KvNode
    parent: str | None
    blocks: tuple[int, ...]
    children: set[str] = field(default_factory=set)


class GpuTier:
    """Holds references to the blocks of nodes in the engine's block pool.

    vLLM finds full blocks by their hashes on its own; a reference keeps them from being reused. Two nodes that share a
    block both hold it. Releasing a node releases the nodes after it, which are of no use without it. Not thread-safe:
    use it on the thread of the engine's scheduler.
    """

    def __init__(self, paging: Paging) -> None:
        self._paging = paging
        # Blocks of all groups end at its multiples.
        self._together = lcm(*(paging.group_tokens(number) for number in range(len(paging.groups))))
        self._held: dict[str, _Held] = {}
        # How many held nodes hold a block.
        self._holders: Counter[int] = Counter()
        # The held nodes without a held node after them, the next one to release first.
        self._leaves: OrderedDict[str, None] = OrderedDict()
        self._pool: BlockPool | None = None

    def bind(self, pool: "BlockPool") -> None:
        """Take the engine's block pool, once it exists."""
        self._pool = pool

    @property
    def pool(self) -> "BlockPool":
        """The engine's block pool."""
        assert self._pool is not None, "the engine has not bound its block pool yet"
        return self._pool

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def node(self, key: str) -> KvNode:
        """A held node. Raises KeyError if it is not held."""
        return self._held[key].node

    def blocks(self, key: str) -> tuple[int, ...]:
        """The blocks of a held node, in the order of its pages. Raises KeyError if it is not held."""
        return self._held[key].blocks

    def nodes(self) -> tuple[HeldNode, ...]:
        """All held nodes."""
        return tuple(HeldNode(held.node.namespace, held.node.path, held.node.tokens) for held in self._held.values())

    def hold(self, node: KvNode, parent: str | None, blocks: tuple[int, ...]) -> None:
        """Hold a node in its ``blocks``, in the order of its pages. ``parent`` is the key of the node before it."""
        if node.key in self._held:
            return
        self.retain(blocks)
        self._holders.update(blocks)
        self._held[node.key] = _Held(node, parent, blocks)
        self._leaves[node.key] = None
        if parent in self._held:
            self._held[parent].children.add(node.key)
            self._leaves.pop(parent, None)

    def can_be_found(self, node: KvNode, blocks: Sequence[int]) -> bool:
        """Whether the engine's prefix cache finds the full blocks of a node. True if the engine has no such cache.

        Blocks that were computed again after a failed load cannot be found, and so other requests cannot share them.
        Nor can those that a window was loaded into, but these are few, nor those after the last place where blocks of
        all groups end: vLLM looks for prefixes that end there.
        """
        if not self.pool.enable_caching:
            return True
        end, first = (node.prefix_tokens + node.tokens) // self._together * self._together, 0
        for number, span in enumerate(self._paging.spans(node.prefix_tokens, node.tokens)):
            if not self._paging.groups[number].window:
                whole = max(0, end // self._paging.group_tokens(number) - span.start)
                if any(self.pool.blocks[block].block_hash is None for block in blocks[first : first + whole]):
                    return False
            first += len(span)
        return True

    def release(self, key: str) -> list[str]:
        """Release a node and all nodes after it. Returns their keys: none if the node is not held."""
        released: list[str] = []
        held = self._held.pop(key, None)
        if held is None:
            return released
        self._leaves.pop(key, None)
        for child in tuple(held.children):
            released += self.release(child)
        if held.parent in self._held:
            siblings = self._held[held.parent].children
            siblings.discard(key)
            if not siblings:
                # The parent is at least as old as what followed it.
                self._leaves[held.parent] = None
                self._leaves.move_to_end(held.parent, last=False)
        self.give_back(held.blocks)
        for block in held.blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
        return [*released, key]

    def retain(self, blocks: Iterable[int]) -> None:
        """Keep blocks from being reused."""
        self.pool.touch([self.pool.blocks[block] for block in blocks])

    def give_back(self, blocks: Sequence[int]) -> None:
        """Undo one ``retain``. The last block is reused first: it is of no use without the ones before it."""
        self.pool.free_blocks([self.pool.blocks[block] for block in reversed(blocks)])

    def spare_blocks(self, count: int) -> list[int]:
        """Retain that many free blocks, which nothing is in. Returns none if half of the free ones are too few."""
        if count > self.pool.get_num_free_blocks() // 2:
            return []
        return [block.block_id for block in self.pool.get_new_blocks(count)]

    def relieve(self, wanted: int, spare: Iterable[str], in_use: Collection[str]) -> list[str]:
        """Release nodes until ``wanted`` blocks are free or no node is left. Returns the released keys.

        ``spare`` nodes go first, in this order; then the oldest leaves; nodes ``in_use`` go last.
        """
        released: list[str] = []
        for key in spare:
            if self.pool.get_num_free_blocks() < wanted and key not in in_use and self._helps(key):
                released += self.release(key)
        for kept in (in_use, ()):
            released += self._release_leaves(wanted, kept)
        return released

    def _release_leaves(self, wanted: int, kept: Collection[str]) -> list[str]:
        released: list[str] = []
        # Leaves that stay. They are few: nodes in use, and nodes whose blocks requests or transfers hold too.
        passed: set[str] = set()
        while self.pool.get_num_free_blocks() < wanted:
            key = next((leaf for leaf in self._leaves if leaf not in passed), None)
            if key is None:
                break
            if key in kept or not self._helps(key):
                passed.add(key)
            else:
                released += self.release(key)
        return released

    def _helps(self, key: str) -> bool:
        """Whether only held nodes hold one of a node's blocks: its release frees the block, or lets its parent's do so.

        A short node may share its only block with its parent.
        """
        held = self._held.get(key)
        return held is not None and any(
            self.pool.blocks[block].ref_cnt == self._holders[block] for block in held.blocks
        )

    def matching(self, condition: Callable[[str, tuple[str, ...]], bool]) -> list[str]:
        """The keys of the held nodes whose namespace and path meet a condition."""
        return [key for key, held in self._held.items() if condition(held.node.namespace, held.node.path)]

    def evict_hashes(self, blocks: Iterable[int]) -> None:
        """Remove blocks from the engine's prefix cache, so that no request finds them by their hashes."""
        self.pool.evict_blocks(set(blocks))


class BlockOwners:
    """Knows which request got each block last, so that a deleted document can be found in free blocks.

    The engine's own prefix cache may still find such blocks by their hashes. Memory is bounded by the number of blocks.
    """

    def __init__(self, gpu: GpuTier, paging: Paging) -> None:
        self._gpu = gpu
        self._paging = paging
        # By block: the documents, and the number of tokens up to the block's end.
        self._owners: dict[int, tuple[PlacedDocuments, int]] = {}

    def record(self, documents: PlacedDocuments, group: int, first: int, blocks: Iterable[int], found: int = 0) -> None:
        """Record the blocks that a request gets in a group, from its page ``first`` on.

        The engine has found the first ``found`` tokens in its own cache. A block among these keeps its owner if the
        request has none of its own documents there.
        """
        size = self._paging.group_tokens(group)
        for end, block in enumerate(blocks, start=first + 1):
            if block == NULL_BLOCK:
                continue
            if end * size > found or (end - 1) * size < documents.tokens or block not in self._owners:
                self._owners[block] = documents, end * size

    def forget(self, purge: Purge, running: Collection[PlannedRequest]) -> None:
        """Delete documents, and all that was computed after them, from the GPU tier and the engine's prefix cache."""
        for key in self._gpu.matching(purge.covers):
            self._gpu.release(key)
        gone: list[int] = []
        for state in running:
            first = state.documents.purged_from(purge)
            if first is not None:
                state.forgotten = True
                gone += state.blocks.after(first)
        for block, (documents, end) in self._owners.items():
            first = documents.purged_from(purge)
            if first is not None and end > first:
                gone.append(block)
        # Requests without a plan are not recorded here. Only a purge of everything covers their blocks.
        self._gpu.evict_hashes(range(self._gpu.pool.num_gpu_blocks) if purge.is_total else gone)
        for block in gone:
            self._owners.pop(block, None)
