"""What tests have a load read, by key and tier."""

from generator.connector.step_jobs import DonorPages, Piece
from protocol.kv import Pages, PeerCopy
from protocol.plans import Donor, PlannedNode
from protocol.tiers import Tier


def piece_of(
    key: str, tier: Tier, first: int, blocks: tuple[int, ...], pages: Pages | None = None, peer: PeerCopy | None = None
) -> Piece:
    """Pages of a node in a tier, or in that of a peer."""
    return Piece(PlannedNode(key, 1, tier if peer is None else None, None, pages, peer=peer), first, blocks)


def donor_pages(
    key: str,
    content: tuple[str, str],
    tier: Tier,
    prefix_tokens: int,
    start: int,
    end: int,
    pages: Pages | None = None,
    blocks: tuple[int, ...] = (),
    peer: PeerCopy | None = None,
) -> DonorPages:
    """All pages of a donor in a tier, or in that of a peer."""
    return DonorPages(Donor(key, tier, prefix_tokens, pages, peer), content, start, end, blocks)
