"""The GPU tier: nodes whose KV stays in the engine's own blocks, held there by reference.

They are released early before requests run out of blocks (``BlockRelief``). Deleted documents are also found in blocks
that nobody holds (``BlockOwners``).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.step_jobs import Purge
from protocol.kv import HeldNode, KvNode, pages_spanned

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

_MOST_SPARE = 64


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

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
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

    def hold(self, node: KvNode, parent: str | None, prompt_blocks: Sequence[int]) -> None:
        """Hold a node of a prompt with these blocks. ``parent`` is the key of the node before it."""
        if node.key in self._held:
            return
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        blocks = tuple(prompt_blocks[span.start : span.stop])
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
        """
        if not self.pool.enable_caching:
            return True
        whole = (node.prefix_tokens + node.tokens) // self._page_tokens - node.prefix_tokens // self._page_tokens
        return all(self.pool.blocks[block].block_hash is not None for block in blocks[:whole])

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


class BlockRelief:
    """Releases held nodes when a running request would be preempted, or a waiting one starve, for want of blocks.

    The engine takes at most ``most_requests`` requests and ``most_tokens`` tokens in one step.
    """

    def __init__(self, gpu: GpuTier, page_tokens: int, most_requests: int, most_tokens: int) -> None:
        self._gpu = gpu
        self._page_tokens = page_tokens
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._spare: deque[str] = deque(maxlen=_MOST_SPARE)

    def set_spare(self, keys: Iterable[str]) -> None:
        """Set the nodes to release first, in this order. At most 64 are remembered."""
        self._spare.clear()
        self._spare.extend(keys)

    def relieve(
        self,
        scheduled: Mapping[str, int],
        requests: "Mapping[str, Request]",
        states: Mapping[str, PlannedRequest],
        loading: Mapping[str, object],
    ) -> list[str]:
        """Release as many nodes as needed for the next step. Returns their keys.

        ``scheduled`` are the tokens of this step by request, ``requests`` all requests that have not ended, in the
        order of their arrival, and ``loading`` those whose blocks are being loaded.
        """
        wanted = len(scheduled) + 1
        if len(scheduled) < self._most_requests and sum(scheduled.values()) < self._most_tokens:
            # The step had room left, so a request that was not scheduled waits for blocks. It is the first of those
            # that wait: the engine serves them in the order of their arrival.
            waiting = next((name for name in requests if name not in scheduled and name not in loading), None)
            if waiting is not None:
                # A load in the background also waits for the blocks that prompts under way still have to get.
                # The engine takes the blocks back from a load that failed from the first one on.
                keeps_blocks = bool(requests[waiting].num_computed_tokens)
                wanted += self._missing(requests[waiting], states.get(waiting), keeps_blocks)
                wanted += sum(
                    self._missing(requests[name], states.get(name))
                    for name in (*scheduled, *loading)
                    if name in requests and not requests[name].num_output_tokens
                )
        if self._gpu.pool.get_num_free_blocks() >= wanted:
            return []
        in_use = {key for state in states.values() if not state.reported for key in state.keys}
        return self._gpu.relieve(wanted, self._spare, in_use)

    def _missing(self, request: "Request", state: PlannedRequest | None, keeps_blocks: bool = True) -> int:
        """The number of blocks a request still has to get: all, less those it has or that are held.

        ``keeps_blocks`` says whether it still has the blocks that its state knows.
        """
        total: int = -(-request.num_tokens // self._page_tokens)
        if state is None:
            computed: int = request.num_computed_tokens
            return max(0, total - computed // self._page_tokens)
        return max(0, total - max(len(state.blocks) if keeps_blocks else 0, self._held_blocks(state)))

    def _held_blocks(self, state: PlannedRequest) -> int:
        """The whole blocks before the first node of a plan that is not held."""
        tokens = 0
        for node in state.nodes:
            if node.key not in self._gpu:
                break
            tokens = node.prefix_tokens + node.tokens
        return tokens // self._page_tokens


class _Prompt(NamedTuple):
    """Where the documents of a request stand. The request itself is not kept: it would cost its token lists."""

    namespace: str
    path: tuple[str, ...]
    nodes: tuple[KvNode, ...]

    def first_block(self, purge: Purge, page_tokens: int) -> int | None:
        """The index of the first block that holds any of the documents to delete, or None if none does."""
        if not purge.covers(self.namespace, self.path):
            return None
        first = next((node for node in self.nodes if purge.covers(node.namespace, node.path)), None)
        return first.prefix_tokens // page_tokens if first is not None else 0


class BlockOwners:
    """Knows which request last wrote each block that it left, so that a deleted document can be found in free blocks.

    The engine's own prefix cache may still find such blocks by their hashes. Memory is bounded by the number of blocks.
    """

    def __init__(self, gpu: GpuTier, page_tokens: int) -> None:
        self._gpu = gpu
        self._page_tokens = page_tokens
        # By block: the prompt, and the block's index in it.
        self._owners: dict[int, tuple[_Prompt, int]] = {}

    def record(self, state: PlannedRequest, blocks: Sequence[int]) -> None:
        """Record the blocks that a request leaves, at its end or at a preemption."""
        prompt = _prompt(state)
        self._owners.update({block: (prompt, index) for index, block in enumerate(blocks)})

    def forget(self, purge: Purge, running: Collection[PlannedRequest]) -> None:
        """Delete documents, and all that was computed after them, from the GPU tier and the engine's prefix cache."""
        for key in self._gpu.matching(purge.covers):
            self._gpu.release(key)
        gone: list[int] = []
        for state in running:
            first = _prompt(state).first_block(purge, self._page_tokens)
            if first is not None:
                state.forgotten = True
                gone += state.blocks[first:]
        for block, (prompt, index) in self._owners.items():
            first = prompt.first_block(purge, self._page_tokens)
            if first is not None and index >= first:
                gone.append(block)
        # Requests without a plan are not recorded here. Only a purge of everything covers their blocks.
        self._gpu.evict_hashes(range(self._gpu.pool.num_gpu_blocks) if purge.is_total else gone)
        for block in gone:
            self._owners.pop(block, None)


def _prompt(state: PlannedRequest) -> _Prompt:
    return _Prompt(state.plan.namespace, state.path, tuple(state.nodes))
