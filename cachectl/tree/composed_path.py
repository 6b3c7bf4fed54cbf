"""A composed prompt's path: what is loaded, what is prefilled exactly before the prompt, and what is donated.

Nothing composed is kept, so what no document donates is computed without the donated ones before it:

    prompt      system ── D1 ── D2 ── D3 ── D4      D1 is cached here, D2 and D4 elsewhere, D3 nowhere
    exact       system ── D1 ────── D3              prefilled first, so that D3 is kept, and donates
    composed    system ── D1 ── D2 ── D3 ── D4
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from cachectl.nodes.keys import keys_below
from cachectl.nodes.node import Copy, Node, NodeCache, PathDocument
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tree.grant import Grant
from cachectl.tree.load_or_recompute import Composing
from protocol.kv import PeerCopy
from protocol.plans import Donor, PlannedNode
from protocol.tiers import Tier


class Path(NamedTuple):
    """Documents below a ``root``, with their ``keys``: the first are loaded from ``hits``, and the first ``pinned``."""

    root: Node
    documents: Sequence[PathDocument]
    keys: Sequence[bytes]
    hits: Sequence[Copy]
    pinned: int

    def part(self, indices: Sequence[int]) -> Path:
        """The path of some of the documents, which begins with all that are loaded."""
        if len(indices) == len(self.documents):
            return self
        documents = [self.documents[index] for index in indices]
        keys = keys_below(self.root.key, [document.content for document in documents])
        return Path(self.root, documents, keys, self.hits, self.pinned)


def used_keys(path: Path, composing: Composing, exact: Mapping[int, bytes]) -> list[bytes]:
    """The keys of the nodes that serve a composed prompt: of donors, and of the documents that are ``exact``."""
    donors = [composing.donor(index, len(path.hits)) for index in range(len(path.documents))]
    return [exact[index] if donor is None else donor.node.key for index, donor in enumerate(donors)]


def peer_of(copy: Copy, gpu: NodeCache, links: PeerLinks) -> PeerCopy | None:
    """The peer that serves a copy to the instance with this GPU; None if the copy lies within its reach."""
    cache = copy.cache
    if gpu.reaches(cache):
        return None
    return PeerCopy(cache.location, links.addresses(cache.location), cache.tier, copy.pages)


def compose(
    path: Path,
    composing: Composing,
    exact: Mapping[int, PlannedNode],
    grant: Grant,
    gpu: NodeCache,
    links: PeerLinks,
) -> None:
    """Grant a composed prompt's path, of which the ``exact`` documents are granted already, by their places.

    The instance with this GPU composes it, and reads what others have over ``links``.

    Those that are computed and kept are prefilled first, with what is before them. Those that cannot be kept are
    computed among what is composed.
    """
    loaded = len(path.hits)
    kept = [index for index, document in exact.items() if index >= loaded and document.kept is not None]
    if kept:
        grant.first = {index: document for index, document in exact.items() if index <= kept[-1]}
    prefix_tokens, donated = 0, False
    for index, (document, key) in enumerate(zip(path.documents, path.keys, strict=True)):
        granted = PlannedNode(key.hex(), document.tokens, None, None)
        donor = composing.donor(index, loaded)
        if donor is not None:
            donated = True
            node = donor.node
            peer = peer_of(donor, gpu, links)
            given = Donor(node.key.hex(), donor.cache.tier, node.prefix_tokens, donor.pages, peer)
            granted = msgspec.structs.replace(granted, donor=given)
        else:
            ready = exact[index]
            if index < loaded:
                # The prefill in front brings it into the GPU.
                from_gpu = kept and ready.kept is Tier.GPU
                granted = msgspec.structs.replace(ready, source=Tier.GPU, peer=None) if from_gpu else ready
            elif ready.kept is not None and donated:
                given = Donor(ready.key, ready.kept, prefix_tokens, ready.pages)
                granted = msgspec.structs.replace(granted, donor=given)
            elif ready.kept is not None:
                granted = msgspec.structs.replace(granted, source=ready.kept, pages=ready.pages)
            prefix_tokens += document.tokens
        grant.documents.append(granted)
