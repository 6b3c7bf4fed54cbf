"""KV at rest: how an engine cuts it into pages, where pages lie, and what is to be done with them.

A page is one block of the engine's paged KV cache in all layers, byte for byte: ``page_tokens`` tokens that begin at a
multiple of it, counted from the start of the prompt. A node of the knowledge tree always stands behind the same prefix,
so its pages are always cut the same way. The first one also holds the end of the prefix where that ends inside a block,
and the rest of the last one is zeros.
"""

import msgspec

from protocol.tiers import Tier


class Pages(msgspec.Struct, frozen=True):
    """Pages of the host memory's arena, handed out for one node: their ``numbers`` in the order of its tokens.

    ``stamp`` numbers this handing out; stamps rise. What lies in the pages under another stamp is not this node's.
    """

    numbers: tuple[int, ...]
    stamp: int


class KvNode(msgspec.Struct, frozen=True):
    """A node as whoever keeps its KV knows it: enough to name it again after a restart.

    ``key`` is hexadecimal; ``path`` lists content hashes from the first segment of the prompt down to the node's own.
    It has ``tokens`` tokens behind ``prefix_tokens``.
    """

    key: str
    namespace: str
    path: tuple[str, ...]
    prefix_tokens: int
    tokens: int


class Move(msgspec.Struct, frozen=True):
    """An order about one node's KV: copy it from ``source`` to ``target``, if there is one; ``evict`` frees the source.

    ``node`` is its key in hexadecimal. ``instance`` has the GPU tier that is meant; None where only shared tiers are.
    ``pages`` are those that it has in host memory, or is to have, where that is the source or the target. Carrying an
    order out twice does no harm.
    """

    node: str
    tokens: int
    source: Tier
    target: Tier | None
    instance: str | None = None
    evict: bool = True
    pages: Pages | None = None


class LostCopy(msgspec.Struct, frozen=True):
    """A copy of a node that a tier does not have, whatever the knowledge tree thinks: unreadable, or never written."""

    node: str
    tier: Tier


class HeldNode(msgspec.Struct, frozen=True):
    """A node that a tier holds. ``path`` lists content hashes from the first segment down to the node's own.

    ``pages`` are the host memory's.
    """

    namespace: str
    path: tuple[str, ...]
    tokens: int
    pages: Pages | None = None


class ResidencyReport(msgspec.Struct, frozen=True):
    """What a tier holds by its own account: an instance's GPU, or a shared tier, whose ``instance`` is None."""

    tier: Tier
    nodes: tuple[HeldNode, ...]
    instance: str | None = None

    def within(self, prefix: str) -> "ResidencyReport":
        """The same with ``prefix`` in front of all namespaces."""
        nodes = tuple(msgspec.structs.replace(held, namespace=prefix + held.namespace) for held in self.nodes)
        return msgspec.structs.replace(self, nodes=nodes)


class KvMemory(msgspec.Struct, frozen=True):
    """Where an instance can keep KV: in pages of ``page_tokens`` tokens and ``page_bytes`` bytes; 0 pages mean nowhere.

    KV is only good for engines of the same ``fingerprint``: of weights, dtype, RoPE, tokenizer and layout. ``boot``
    names this life of the engine; with it goes what its GPU holds. Rates are measured: from host memory to the engine's
    blocks, and from disk. ``device`` says what the engine computes on, for what is measured there is true there.
    ``shared`` names the memory and the disk below its GPU: instances that say the same reach the same.
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


class Orders(msgspec.Struct, frozen=True):
    """What an instance is to do to its tiers outside of any plan.

    ``moves`` in their order; then ``forget``: content hashes of documents by namespace, of whose KV nothing may be left
    in the engine and its tiers, in or out of the knowledge tree, nor of anything that was computed behind them.
    ``everything``: nothing may be left at all. ``blocks_only`` spares the tiers below the GPU, so that loads from there
    can be measured.
    """

    moves: tuple[Move, ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    everything: bool = False
    blocks_only: bool = False


def pages_spanned(prefix_tokens: int, tokens: int, page_tokens: int) -> range:
    """The pages of a prompt, counted from 0, that hold any of ``tokens`` tokens behind ``prefix_tokens``."""
    return range(prefix_tokens // page_tokens, -(-(prefix_tokens + tokens) // page_tokens))
