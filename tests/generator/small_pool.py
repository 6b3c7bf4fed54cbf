"""vLLM's own block pool in a small size, and prompts whose nodes a GPU tier holds."""

from vllm.v1.core.block_pool import BlockPool

from generator.connector.scheduler.gpu_tier import GpuTier
from protocol.kv import KvNode

PAGE = 4
BLOCKS = 17  # the pool keeps one for itself


def small_pool() -> BlockPool:
    return BlockPool(num_gpu_blocks=BLOCKS, enable_caching=True, hash_block_size=PAGE)


class Chain:
    """Consecutive nodes of one prompt, whose request has ended."""

    def __init__(self, tier: GpuTier, pool: BlockPool, *tokens: int, name: str = "n") -> None:
        self.blocks = [block.block_id for block in pool.get_new_blocks(-(-sum(tokens) // PAGE))]
        parent, position, path = None, 0, ()
        self.keys: list[str] = []
        for number, count in enumerate(tokens):
            path = (*path, f"{name}{number}")
            node = KvNode(f"{name}-{number}", "tenant", path, position, count)
            span = range(position // PAGE, -(-(position + count) // PAGE))
            tier.hold(node, parent, tuple(self.blocks[span.start : span.stop]))
            parent, position = node.key, position + count
            self.keys.append(node.key)
        pool.free_blocks([pool.blocks[block] for block in reversed(self.blocks)])
