"""KV outside the engine: pages, where they are kept, and the orders that move them.

A page is one block of the engine's paged KV cache in all layers, byte for byte. It holds ``page_tokens`` tokens and
begins at a multiple of that number, counted from the start of the prompt. A node of the knowledge tree always follows
the same prefix, so its pages are always cut the same way. If the prefix ends inside a block, the node's first page also
holds the end of the prefix. The rest of the last page is zeros.
"""

from collections.abc import Callable

import msgspec

from protocol.tiers import Tier


class Pages(msgspec.Struct, frozen=True):
    """Pages of the host memory's arena, allocated for one node: their ``numbers`` in token order.

    ``stamp`` numbers the allocation; stamps rise. Data in the pages under another stamp is not this node's.
    """

    numbers: tuple[int, ...]
    stamp: int


class KvNode(msgspec.Struct, frozen=True):
    """A node as stored with its KV: enough to identify it after a restart.

    ``key`` is hexadecimal. ``path`` lists the content hashes from the first segment of the prompt down to the node. The
    node has ``tokens`` tokens after ``prefix_tokens``.
    """

    key: str
    namespace: str
    path: tuple[str, ...]
    prefix_tokens: int
    tokens: int


class Move(msgspec.Struct, frozen=True):
    """An order for one node's KV: copy it from ``source`` to ``target``, if set; ``evict`` frees the source.

    A move from a shared tier to itself copies nothing. It checks that the copy is there, after all earlier moves.
    ``node`` is the node's key in hexadecimal. ``instance`` owns the GPU tier; it is None if only shared tiers are
    involved. ``location`` names the location, or the disk, that the source belongs to. ``pages`` are the node's pages
    in host memory, if that is the source or the target. Orders are idempotent.
    """

    node: str
    tokens: int
    source: Tier
    target: Tier | None
    instance: str | None = None
    evict: bool = True
    pages: Pages | None = None
    location: str = ""


class LostCopy(msgspec.Struct, frozen=True):
    """A copy that a tier does not have, although the knowledge tree lists it: unreadable, or never written.

    ``location`` is empty for a tier within the reporting instance's own reach.
    """

    node: str
    tier: Tier
    location: str = ""


class PeerCopy(msgspec.Struct, frozen=True):
    """A node's copy in the ``tier`` of another location, which serves it to its peers.

    ``location`` names it or, for a disk that several locations have, that disk. ``addresses`` are those of one instance
    there, ``host:port`` for each tensor-parallel rank. ``pages`` are the node's pages in that location's host memory.
    """

    location: str
    addresses: tuple[str, ...]
    tier: Tier
    pages: Pages | None = None


class PeerRead(msgspec.Struct, frozen=True):
    """What an instance has read from a tier of another location, at an ``address``: ``tokens`` in ``seconds``.

    It ``failed`` if the peer was not reached, or did not send everything intact and in time. Copies that the peer does
    not have are lost instead.
    """

    location: str
    tokens: int
    seconds: float
    failed: bool = False
    tier: Tier = Tier.HOST
    address: str = ""


class HeldNode(msgspec.Struct, frozen=True):
    """A node that a tier holds. ``path`` lists the content hashes from the first segment down to the node.

    ``pages`` are the node's pages in host memory.
    """

    namespace: str
    path: tuple[str, ...]
    tokens: int
    pages: Pages | None = None


class ResidencyReport(msgspec.Struct, frozen=True):
    """What a tier really holds: an instance's GPU, or a shared tier, whose ``instance`` is None.

    ``highest_stamp`` is the highest one in any page of host memory, free pages included.
    """

    tier: Tier
    nodes: tuple[HeldNode, ...]
    instance: str | None = None
    highest_stamp: int = 0

    def only(self, chosen: Callable[[str], bool]) -> "ResidencyReport":
        """Return the report of the nodes in ``chosen`` namespaces."""
        return msgspec.structs.replace(self, nodes=tuple(held for held in self.nodes if chosen(held.namespace)))

    def within(self, prefix: str) -> "ResidencyReport":
        """Return the report with ``prefix`` before all namespaces."""
        nodes = tuple(msgspec.structs.replace(held, namespace=prefix + held.namespace) for held in self.nodes)
        return msgspec.structs.replace(self, nodes=nodes)


class Peers(msgspec.Struct, frozen=True):
    """How an instance takes part in sharing KV between locations.

    It serves its location's tiers at ``addresses``, ``host:port`` for each rank; empty if it does not. A load waits for
    what others serve for at most ``timeout_s``.
    """

    addresses: tuple[str, ...] = ()
    timeout_s: float = 0.0


NO_PEERS = Peers()


class KvMemory(msgspec.Struct, frozen=True):
    """Where an instance can keep KV: in pages of ``page_tokens`` tokens and ``page_bytes`` bytes.

    0 pages disable a tier. With tensor parallelism, each rank has a part of every page; all figures are for the ranks
    together.

    - ``fingerprint`` covers weights, dtype, RoPE, tokenizer, layout and the release of vLLM. KV is valid only for
      engines with the same one.
    - ``boot`` names this run of the engine. KV in its GPU is lost with it.
    - Rates are measured: from host memory to the engine's blocks, and from disk.
    - ``device`` names what the engine computes on. Measured costs are valid for that device.
    - ``layout`` describes the engine's KV cache for people: attention backend, dtype, and the shape of a block.
    - ``shared`` names the host memory and disk tiers. Instances with the same name share them.
    - ``disk`` names the disk tier on every machine that uses it. Instances with the same name share it. If it is
      empty, the disk has no other name than ``shared``.
    - ``peers`` says where these tiers are served to other locations, if they are.
    """

    fingerprint: str
    boot: str
    page_tokens: int
    page_bytes: int
    gpu_pages: int
    host_pages: int
    disk_pages: int
    host_bytes_per_s: float
    disk_bytes_per_s: float
    device: str = ""
    shared: str = ""
    disk: str = ""
    layout: str = ""
    peers: Peers = NO_PEERS


class Orders(msgspec.Struct, frozen=True):
    """Orders for an instance's tiers, outside of any plan.

    The ``moves`` run first, in order. Then no KV of the documents in ``forget`` (namespace, content hash) may be left
    in the engine or its tiers, inside or outside the knowledge tree, nor any KV computed after them. ``everything``
    drops all KV, or that of the namespaces that end with ``of``. Either concerns ``tiers`` only.
    """

    moves: tuple[Move, ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    everything: bool = False
    tiers: tuple[Tier, ...] = tuple(Tier)
    of: str = ""


def pages_spanned(prefix_tokens: int, tokens: int, page_tokens: int) -> range:
    """Return the pages of a prompt, counted from 0, that hold any of ``tokens`` tokens after ``prefix_tokens``."""
    return range(prefix_tokens // page_tokens, -(-(prefix_tokens + tokens) // page_tokens))
