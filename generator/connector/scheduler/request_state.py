"""State of one request whose plan the scheduler side executes."""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from generator.connector.messages import Prefilled, RequestMessage
from generator.connector.step_jobs import BlockCopy, Load, Piece
from protocol.kv import KvNode, pages_spanned
from protocol.plans import PlannedNode
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Offer(NamedTuple):
    """What a request can load: tokens from ``local``, the start of a block, up to ``end``, out of ``nodes``."""

    local: int
    end: int
    nodes: list[int]


class RequestState:
    """A request, its plan, and how far the engine has executed it.

    - ``nodes``: the plan's nodes with their positions in the prompt.
    - ``blocks``: the blocks that the engine has allocated to the request.
    - ``offer``: what the engine was last offered to load.
    - ``local``: tokens that the engine found in its own cache. ``cached``: ``local`` plus the tokens that were loaded.
    - ``missing``: copies that were planned as sources and could not be read, as key and tier.
    - ``nodes_kept``: whether the nodes are already kept as planned.
    - ``forgotten``: whether a document was deleted meanwhile, so that nothing of this request may be found later.
    - ``reached``: set if a speculative request ended before its first token; prompt tokens computed by then.
    - ``reported``: whether the request's prefill has been reported.
    """

    def __init__(self, request: "Request", message: RequestMessage, page_tokens: int) -> None:
        self.request = request
        self.message = message
        self._page_tokens = page_tokens
        self.nodes: list[KvNode] = []
        position = 0
        for depth, planned in enumerate(message.nodes, start=1):
            self.nodes.append(KvNode(planned.key, message.namespace, message.path[:depth], position, planned.tokens))
            position += planned.tokens
        self.blocks: list[int] = []
        self.nodes_kept = False
        self.offer = Offer(0, 0, [])
        self.local = 0
        self.cached = 0
        self.load_seconds = 0.0
        self.missing: set[tuple[str, Tier]] = set()
        self.forgotten = False
        self.reported = False
        self.reached: int | None = None

    @property
    def loads_in_background(self) -> bool:
        """Whether the offer has nodes in a tier below the GPU, whose copies may be slow to load, or missing."""
        return any(self.planned(index).source is not Tier.GPU for index in self.offer.nodes)

    @property
    def saves(self) -> bool:
        """Whether the plan has nodes saved below the GPU after the first token."""
        return any(node.saved_to is not None for node in self.message.nodes)

    @property
    def keys(self) -> set[str]:
        """The keys of the plan's nodes."""
        return {node.key for node in self.nodes}

    def parent(self, index: int) -> str | None:
        """The key of the node in front of a node, or None for the first."""
        return self.nodes[index - 1].key if index else None

    def planned(self, index: int) -> PlannedNode:
        """What the plan says about a node."""
        return self.message.nodes[index]

    def make_offer(self, local: int, held: Container[str]) -> Offer:
        """Set ``offer`` to what can be loaded behind the first ``local`` tokens; ``held`` are the GPU tier's nodes."""
        found = self.loadable(local, held)
        # The last token of a prompt is always computed: the next token is sampled from it.
        last: int = self.request.num_tokens - 1
        end = min(_end(self.nodes[found[-1]]), last) if found else 0
        self.offer = Offer(local, max(local, end), found)
        return self.offer

    def loadable(self, local: int, held: Container[str]) -> list[int]:
        """The nodes, by index, to load so that everything the plan calls cached is used.

        The nodes are consecutive and end behind the first ``local`` tokens. The first missing copy ends the list,
        because nothing behind it is of use. ``held`` are the keys of the nodes in the GPU tier.
        """
        found = []
        for index, node in enumerate(self.nodes):
            if _end(node) <= local:
                continue
            source = self.planned(index).source
            if source is None or (node.key, source) in self.missing:
                break
            if source is Tier.GPU and node.key not in held:
                break
            found.append(index)
        return found

    def load_of(self, held: Mapping[str, tuple[int, ...]]) -> Load:
        """The load that carries out the offer; ``held`` are the blocks of the nodes in the GPU tier.

        If several offered nodes reach into one block, it is copied from the last of them, whose page also has the
        tokens in front.
        """
        local, end, nodes = self.offer
        pieces: list[Piece] = []
        copies: list[BlockCopy] = []
        for index in nodes:
            node, planned = self.nodes[index], self.planned(index)
            assert planned.source is not None
            span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
            start = max(span.start, local // self._page_tokens)
            reach = min(_end(node), end)
            last = reach == end or index == nodes[-1]
            stop = -(-reach // self._page_tokens) if last else reach // self._page_tokens
            if start < stop:
                first, blocks = start - span.start, tuple(self.blocks[start:stop])
                if planned.source is Tier.GPU:
                    own = held[node.key][first : first + len(blocks)]
                    copies += [BlockCopy(*pair) for pair in zip(own, blocks, strict=True)]
                else:
                    pieces.append(Piece(node.key, planned.source, first, blocks, planned.pages))
            if last:
                break
        return Load(self.request.request_id, tuple(pieces), tuple(copies))

    def node_blocks(self, index: int) -> tuple[int, ...]:
        """The blocks that hold a node. Valid once the engine has allocated them."""
        node = self.nodes[index]
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        return tuple(self.blocks[span.start : span.stop])

    def has_blocks(self, index: int) -> bool:
        """Whether the engine has allocated all blocks of a node."""
        node = self.nodes[index]
        return len(self.blocks) >= pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens).stop

    def limit_cached(self, tokens: int) -> None:
        """Count at most the first ``tokens`` tokens as cached: the engine computes what stands behind them."""
        self.cached = min(self.cached, tokens)

    def has_reached(self, index: int, tokens: int) -> bool:
        """Whether a node's blocks are complete after ``tokens`` tokens: full, or filled to the end of the prompt."""
        node = self.nodes[index]
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        prompt_tokens: int = self.request.num_prompt_tokens
        return min(span.stop * self._page_tokens, prompt_tokens) <= tokens

    def prefilled(self) -> Prefilled:
        """Which tier the prompt's tokens came from, so far."""
        loaded: dict[Tier, int] = {}
        local = min(self.local, self.cached)
        if local:
            loaded[Tier.GPU] = local
        for index, node in enumerate(self.nodes):
            tokens = min(_end(node), self.cached) - max(node.prefix_tokens, local)
            source = self.planned(index).source
            if tokens > 0 and source is not None:
                loaded[source] = loaded.get(source, 0) + tokens
        return Prefilled(loaded, self.load_seconds * 1000, self.reached)


def _end(node: KvNode) -> int:
    return node.prefix_tokens + node.tokens
