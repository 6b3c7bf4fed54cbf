"""The GPU tier: nodes whose KV stays in the engine's own blocks, held there by reference."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from protocol.kv import HeldNode, KvNode, pages_spanned

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class _Held:
    """A held node: its blocks in the order of its pages, and the held nodes right behind it."""

    __slots__ = ("blocks", "children", "node", "parent")

    def __init__(self, node: KvNode, parent: str | None, blocks: tuple[int, ...]) -> None:
        self.node = node
        self.parent = parent
        self.blocks = blocks
        self.children: set[str] = set()


class GpuTier:
    """Holds references to the blocks of nodes in the engine's block pool.

    vLLM finds full blocks by their hashes on its own; a reference keeps them from being reused. Two nodes that share a
    block both hold it. Releasing a node releases the nodes behind it, which are of no use without it. Not thread-safe:
    use it on the thread of the engine's scheduler.
    """

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._held: dict[str, _Held] = {}
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
        """Hold a node of a prompt with these blocks. ``parent`` is the key of the node in front of it."""
        if node.key in self._held:
            return
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        blocks = tuple(prompt_blocks[span.start : span.stop])
        self.retain(blocks)
        self._held[node.key] = _Held(node, parent, blocks)
        if parent in self._held:
            self._held[parent].children.add(node.key)

    def can_be_found(self, node: KvNode, blocks: Sequence[int]) -> bool:
        """Whether the engine's prefix cache finds the full blocks of a node. True if the engine has no such cache.

        Blocks that were computed again after a failed load cannot be found, and so other requests cannot share them.
        """
        if not self.pool.enable_caching:
            return True
        whole = (node.prefix_tokens + node.tokens) // self._page_tokens - node.prefix_tokens // self._page_tokens
        return all(self.pool.blocks[block].block_hash is not None for block in blocks[:whole])

    def release(self, key: str) -> list[str]:
        """Release a node and all nodes behind it. Returns their keys: none if the node is not held."""
        released: list[str] = []
        held = self._held.pop(key, None)
        if held is None:
            return released
        for child in tuple(held.children):
            released += self.release(child)
        if held.parent in self._held:
            self._held[held.parent].children.discard(key)
        self.give_back(held.blocks)
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
        while self.pool.get_num_free_blocks() < wanted:
            key = next(self._expendable(spare, in_use), None)
            if key is None:
                break
            released += self.release(key)
        return released

    def _expendable(self, spare: Iterable[str], in_use: Collection[str]) -> Iterator[str]:
        yield from (key for key in spare if key in self._held and key not in in_use and self._frees(self._held[key]))
        leaves = [key for key, held in self._held.items() if not held.children and self._frees(held)]
        yield from (key for key in leaves if key not in in_use)
        yield from leaves

    def _frees(self, held: _Held) -> bool:
        """Whether releasing a node frees a block: requests, neighbouring nodes and transfers may hold blocks too."""
        return any(self.pool.blocks[block].ref_cnt == 1 for block in held.blocks)

    def matching(self, condition: Callable[[str, tuple[str, ...]], bool]) -> list[str]:
        """The keys of the held nodes whose namespace and path meet a condition."""
        return [key for key, held in self._held.items() if condition(held.node.namespace, held.node.path)]

    def evict_hashes(self, blocks: Iterable[int]) -> None:
        """Remove blocks from the engine's prefix cache, so that no request finds them by their hashes."""
        self.pool.evict_blocks(set(blocks))
