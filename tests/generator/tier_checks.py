"""What tests ask about a tier while nothing is being written: whether its index is right, and how much it holds."""

from generator.tiers.arena import HostArena, State
from generator.tiers.base import KvTier
from generator.tiers.disk import DiskTier
from generator.tiers.object_store import ObjectStoreTier


def used_bytes(tier: KvTier) -> int:
    """The bytes that known copies occupy: the pages of whole nodes, or files and objects with their headers."""
    if isinstance(tier, (DiskTier, ObjectStoreTier)):
        return tier._used()
    if isinstance(tier, HostArena):
        return sum(len(stored.pages.numbers) for stored in tier.nodes()) * tier._geometry.page_bytes
    return 0


def check_tier(tier: KvTier) -> None:
    """Assert that the tier's index matches what is stored, and that no room is reserved."""
    if isinstance(tier, HostArena):
        whole = {number for stored in tier.nodes() for number in stored.pages.numbers}
        for number, state in enumerate(tier._states.tolist()):
            expected = State.READY if number in whole else State.FREE
            assert state == expected, f"page {number} is {State(state).name}"
    if isinstance(tier, (DiskTier, ObjectStoreTier)):
        assert not tier._reserved, "room is reserved, but nothing is being written"
    if isinstance(tier, DiskTier):
        for key, (node, size) in tier._index.items():
            assert key == node.key
            assert size == tier._format.file_bytes(node) == tier._folder.file(key).stat().st_size
    if isinstance(tier, ObjectStoreTier):
        assert {key: entry.bytes for key, entry in tier._index.items()} == dict(tier._keys())
        for key, (size, node) in tier._index.items():
            assert node is None or (node.key, tier._format.file_bytes(node)) == (key, size)
