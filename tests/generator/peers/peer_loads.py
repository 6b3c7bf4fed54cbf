"""Loads of whole nodes from a peer."""

import time

import numpy as np
from page_target import MemoryBlocks
from peer_nodes import PAGE_BYTES, content_of, make_node

from generator.peers.page_client import PeerPages
from generator.tiers.base import Page
from protocol.kv import KvNode, Pages
from protocol.tiers import Tier

NODE = make_node(1)
PAGES = Pages((7, 3, 5), 1)


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def load(
    client: PeerPages,
    address: str,
    node: KvNode = NODE,
    pages: Pages | None = PAGES,
    tier: Tier = Tier.HOST,
    deadline: float | None = None,
    reachable: bool = True,
) -> Page:
    """All pages of a node."""
    count = len(content_of(node))
    target = MemoryBlocks(count, (PAGE_BYTES,), reachable)
    with client.reading(address, node.key, tier, pages, soon() if deadline is None else deadline) as reader:
        reader.load(0, range(count), target)
    return np.array([target.page(block) for block in range(count)])
