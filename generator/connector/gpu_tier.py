"""The GPU tier: nodes whose KV stays in the engine's own blocks, held there by reference."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from protocol.kv import HeldNode, KvNode, pages_spanned

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class _Held:
    """A node's blocks in the order of its pages, and which held nodes stand right behind it."""

    __slots__ = ("blocks", "children", "node", "parent")

    def __init__(self, node: KvNode, parent: str | None, blocks: tuple[int, ...]) -> None:
        self.node = node
        self.parent = parent
        self.blocks = blocks
        self.children: set[str] = set()


class GpuTier:
    """References on the blocks of nodes, in an engine's own pool, which finds full blocks by their hashes by itself.

    A block that two nodes share is held by both. Releasing a node releases what stands behind it: nobody could use it.
    Belongs to the thread of the engine's scheduler.
    """

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._held: dict[str, _Held] = {}
        self._pool: BlockPool | None = None

    def bind(self, pool: "BlockPool") -> None:
        """Take the engine's pool of blocks, once it is there."""
        self._pool = pool

    @property
    def pool(self) -> "BlockPool":
        """The engine's pool of blocks."""
        assert self._pool is not None, "the engine has not shown its blocks yet"
        return self._pool

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def node(self, key: str) -> KvNode:
        """A held node. Raises KeyError."""
        return self._held[key].node

    def blocks(self, key: str) -> tuple[int, ...]:
        """The blocks of a held node, in the order of its pages. Raises KeyError."""
        return self._held[key].blocks

    def nodes(self) -> tuple[HeldNode, ...]:
        """What is held."""
        return tuple(HeldNode(held.node.namespace, held.node.path, held.node.tokens) for held in self._held.values())

    def hold(self, node: KvNode, parent: str | None, prompt_blocks: Sequence[int]) -> None:
        """Hold a node that lies in its place in a prompt's blocks; ``parent`` is the key of the node in front of it."""
        if node.key in self._held:
            return
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        blocks = tuple(prompt_blocks[span.start : span.stop])
        self.retain(blocks)
        self._held[node.key] = _Held(node, parent, blocks)
        if parent in self._held:
            self._held[parent].children.add(node.key)

    def can_be_found(self, node: KvNode, blocks: Sequence[int]) -> bool:
        """Whether the engine's own cache knows the whole blocks of a node, where it has such a cache.

        It does not where they were computed once more, after a load that failed: then nobody could share them.
        """
        if not self.pool.enable_caching:
            return True
        whole = (node.prefix_tokens + node.tokens) // self._page_tokens - node.prefix_tokens // self._page_tokens
        return all(self.pool.blocks[block].block_hash is not None for block in blocks[:whole])

    def release(self, key: str) -> list[str]:
        """Let a node go with all that stands behind it; their keys, none if it was not held."""
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
        """Keep blocks from being used for anything else."""
        self.pool.touch([self.pool.blocks[block] for block in blocks])

    def give_back(self, blocks: Sequence[int]) -> None:
        """Undo one ``retain``. What is read last is reused first: it is worth least without what stands before it."""
        self.pool.free_blocks([self.pool.blocks[block] for block in reversed(blocks)])

    def relieve(self, wanted: int, spare: Iterable[str], in_use: Collection[str]) -> list[str]:
        """Release nodes until ``wanted`` blocks are free or nothing is held: ``spare`` in its order, then the oldest.

        What stands under nothing goes first, and what is ``in_use`` last. Returns the keys of what went.
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
        """Whether letting a node go would free a block: requests, neighbours and transfers hold some, too."""
        return any(self.pool.blocks[block].ref_cnt == 1 for block in held.blocks)

    def matching(self, doomed: Callable[[str, tuple[str, ...]], bool]) -> list[str]:
        """The keys of held nodes that a condition on namespace and path holds for."""
        return [key for key, held in self._held.items() if doomed(held.node.namespace, held.node.path)]

    def evict_hashes(self, blocks: Iterable[int]) -> None:
        """Let nobody find these blocks by what they held."""
        self.pool.evict_blocks(set(blocks))
