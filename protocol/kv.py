"""KV outside the engine: pages, where they are kept, and the orders that move them.

A page is one block of the engine's paged KV cache, byte for byte: in all layers, or in those of one group if the engine
has several groups of layers, each with blocks of its own. It begins at a multiple of its length, counted from the start
of the prompt. A node of the knowledge tree always follows the same prefix, so its pages are always cut the same way. If
the prefix ends inside a block, the node's first page also holds the end of the prefix. The rest of the last page is
zeros.

KV belongs to a namespace: to a tenant, and to the weights that have computed it.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from protocol.tiers import Tier


class PageGroup(NamedTuple):
    """The pages of one group of an engine's layers, each of ``times`` as many tokens as ``Paging`` counts in.

    The layers attend to the last ``window`` tokens, or to all if it is 0. If they attend to ``chunks``, a token attends
    to those in its own chunk of ``window`` tokens, counted from the start of the prompt. If they keep ``states``, a
    page is their state after a token, which sums up all before it: a window of that token.
    """

    window: int = 0
    times: int = 1
    chunks: bool = False
    states: bool = False

    def first_attended(self, position: int) -> int:
        """The first token that a token at this position attends to, or whose state it goes on from."""
        if not self.window:
            return 0
        if self.chunks:
            return position // self.window * self.window
        return max(0, position - self.window + (not self.states))

    def first_kept(self, end: int) -> int:
        """The first token that is kept for what follows the first ``end`` tokens.

        That is what the last of them attends to, which is computed again if nothing follows. No state is kept for that.
        """
        return end - 1 if self.states else self.first_attended(end - 1)


class Paging(NamedTuple):
    """How KV is cut into pages, which have ``page_tokens`` tokens or a multiple, for each group of an engine's layers.

    A prompt continues after whole nodes. So a node keeps, in each group, what a token right after it can attend to, and
    what ``PageGroup.first_kept`` says beside that. The pages of a node are counted through, group by group.
    """

    page_tokens: int = 1
    groups: tuple[PageGroup, ...] = (PageGroup(),)

    @property
    def keeps_all(self) -> bool:
        """Whether there is one group, and it attends to all tokens: then a node has all of its tokens in every page."""
        return self.groups == _ONE_GROUP

    @property
    def has_windows(self) -> bool:
        """Whether a group attends to a window, or keeps states."""
        return any(group.window for group in self.groups)

    @property
    def has_states(self) -> bool:
        """Whether a group keeps states."""
        return any(group.states for group in self.groups)

    def ends_states_at(self, position: int) -> bool:
        """Whether a block with a state ends there."""
        return any(
            group.states and position % self.group_tokens(number) == 0 for number, group in enumerate(self.groups)
        )

    def group_tokens(self, group: int) -> int:
        """How many tokens a page of a group has."""
        return self.page_tokens * self.groups[group].times

    def spans(self, prefix_tokens: int, tokens: int) -> Iterator[range]:
        """For each group, the pages of a prompt, counted from 0, that a node of ``tokens`` tokens keeps."""
        end = prefix_tokens + tokens
        for group in self.groups:
            size = self.page_tokens * group.times
            yield range(max(prefix_tokens, group.first_kept(end)) // size, -(-end // size))

    def page_count(self, prefix_tokens: int, tokens: int) -> int:
        """How many pages a node of ``tokens`` tokens has."""
        return sum([len(span) for span in self.spans(prefix_tokens, tokens)])


_ONE_GROUP = (PageGroup(),)

BY_TOKEN = Paging()
"""Pages of one token."""


class Pages(msgspec.Struct, frozen=True):
    """Pages of the host memory's arena, allocated for one node: their ``numbers`` in the order of the node's pages.

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


class KvRead(msgspec.Struct, frozen=True):
    """What an instance has read from a tier for one request: ``tokens`` in ``seconds``.

    At another ``location``, it was read at an ``address``. It ``failed`` if the peer was not reached, or did not send
    everything intact and in time. Copies that the peer does not have are lost instead.

    Without a location, the tier is the instance's own. Then ``seconds`` are those that the request has waited until the
    engine could compute it. Loads within the step that computes are not waited for, and not reported.
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
    """Where an instance can keep KV: in pages of ``page_bytes`` bytes, cut as ``paging`` says.

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
    groups: tuple[PageGroup, ...] = _ONE_GROUP

    @property
    def paging(self) -> Paging:
        """How the KV is cut into pages."""
        return Paging(self.page_tokens, self.groups)


class Orders(msgspec.Struct, frozen=True):
    """Orders for an instance's tiers, outside of any plan.

    The ``moves`` run first, in order. Then no KV of the documents in ``forget`` (namespace, content hash) may be left
    in the engine or its tiers, inside or outside the knowledge tree, nor any KV computed after them, by whichever
    weights. ``everything`` drops all KV, or that of the namespaces that end with ``of``. Either concerns ``tiers``
    only.
    """

    moves: tuple[Move, ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    everything: bool = False
    tiers: tuple[Tier, ...] = tuple(Tier)
    of: str = ""


ADAPTER_DIGEST_BYTES = 16
_MARK = "@"
"""Stands between a tenant's namespace and the digest of the adapter that computes its KV."""
_ADAPTER = re.compile(rf"{_MARK}([0-9a-f]{{{2 * ADAPTER_DIGEST_BYTES}}})(?=#|$)")
"""In the name of a shard's namespace, the number of the shard follows. Plain vLLM's users may choose any names."""


def with_adapter(namespace: str, digest: str) -> str:
    """The tenant's namespace for the adapter with this ``digest``, which is hexadecimal; without one, its own."""
    return f"{namespace}{_MARK}{digest}" if digest else namespace


def adapter_of(namespace: str) -> str:
    """The digest of a namespace's adapter; empty for the model's own weights."""
    found = _ADAPTER.search(namespace)
    return found[1] if found else ""


def without_adapter(namespace: str) -> str:
    """The tenant's namespace for the model's own weights. It identifies the tenant among all namespaces."""
    return _ADAPTER.sub("", namespace)
