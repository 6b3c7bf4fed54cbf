"""What leaves an engine's blocks, moves between the tiers below the GPU, or is deleted from them."""

from collections.abc import Sequence

import structlog

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.connector.step_jobs import Purge, Transfer
from generator.tiers.base import KvTier, TierContents, TierError, TierUnavailable
from protocol.kv import KvNode, pages_spanned
from protocol.tiers import Tier

log = structlog.get_logger(__name__)


class TierJobs:
    """Carries out transfers and purges over an engine's ``blocks`` and the ``tiers`` below the GPU.

    Every method raises what the tiers raise.
    """

    def __init__(self, blocks: PagedBlocks, tiers: dict[Tier, KvTier]) -> None:
        self._blocks = blocks
        self._tiers = tiers

    def transfer(self, transfer: Transfer) -> None:
        """Copy a node, delete it, or both. Raises TierError if the engine no longer holds what is to be copied."""
        source = self._tiers.get(transfer.source)
        if transfer.target is not None:
            target = self._tiers[transfer.target]
            if not target.has(transfer.key, transfer.pages):
                if source is not None:
                    self._copy(source, target, transfer)
                elif transfer.node is not None:
                    self._save(transfer.node, transfer.blocks, target, transfer)
                else:
                    raise TierError("the engine no longer holds the node")
        if source is not None and transfer.evict:
            source.drop(transfer.key, transfer.pages)

    def purge(self, purge: Purge) -> int:
        """Delete what the tiers themselves list, which includes nodes that the knowledge tree does not know.

        Returns the number of nodes that could not be deleted. Raises TierUnavailable if a tier does not list its nodes;
        the other ones are purged then.
        """
        left = 0
        silent: TierUnavailable | None = None
        for tier in [self._tiers[named] for named in purge.tiers if named in self._tiers]:
            try:
                held = tier.nodes()
            except TierUnavailable as error:
                silent = error
                continue
            covered = [stored for stored in held if purge.covers(stored.node.namespace, stored.node.path)]
            for node, pages in covered:
                tier.drop(node.key, pages)
            left += sum(tier.has(node.key, pages) for node, pages in covered)
        if silent is not None:
            raise silent
        return left

    def held(self) -> dict[Tier, TierContents]:
        """What the tiers hold, without those that do not answer."""
        contents = {}
        for tier, kept in self._tiers.items():
            try:
                contents[tier] = TierContents(tuple(kept.nodes()), kept.highest_stamp)
            except TierUnavailable as error:
                log.warning("a tier does not say what it holds", tier=tier.value, reason=str(error))
        return contents

    def _save(self, node: KvNode, blocks: Sequence[int], target: KvTier, transfer: Transfer) -> None:
        page_tokens = self._blocks.page_tokens
        end = node.prefix_tokens + node.tokens
        first = node.prefix_tokens // page_tokens
        with target.writing(node, transfer.pages) as writer:
            try:
                for index, block in enumerate(blocks):
                    self._blocks.read(block, writer.page(index), min(page_tokens, end - (first + index) * page_tokens))
            finally:
                # The tier publishes the pages on exit, or frees them after an error, so no byte may still be under way.
                self._blocks.finish()

    def _copy(self, source: KvTier, target: KvTier, transfer: Transfer) -> None:
        with (
            source.reading(transfer.key, transfer.pages) as reader,
            target.writing(reader.node, transfer.pages) as writer,
        ):
            node = reader.node
            for index in range(len(pages_spanned(node.prefix_tokens, node.tokens, self._blocks.page_tokens))):
                writer.page(index)[:] = reader.page(index)
            # The pages in host memory may have been handed out again. The writer publishes on exit, so check before.
            reader.verify()
