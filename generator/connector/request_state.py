"""One request's orders as the scheduler half executes them."""

from typing import TYPE_CHECKING, NamedTuple

from generator.connector.messages import RequestOrders, Resolved
from generator.connector.step_jobs import Piece
from protocol.kv import KvNode, pages_spanned
from protocol.plans import PlannedNode
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Offer(NamedTuple):
    """What can be loaded for a request: tokens from ``local``, the start of a block, to ``end``, out of ``nodes``."""

    local: int
    end: int
    nodes: list[int]


class Execution:
    """A request, its plan, and how far the engine has come with it.

    ``nodes`` are the plan's as they lie in the prompt; ``settled`` once they are kept where they should be. ``offer``
    is what the engine was offered last. The first ``local`` tokens were found in the engine's own cache, those up to
    ``cached`` were loaded. ``missing`` are copies that turned out not to be there. What a ``forgotten`` request
    computes, nobody may find afterwards. ``told``: its first token was reported, or that it ended without one after it
    had ``reached`` so many tokens of its prompt.
    """

    def __init__(self, request: "Request", orders: RequestOrders, page_tokens: int) -> None:
        self.request = request
        self.orders = orders
        self._page_tokens = page_tokens
        self.nodes: list[KvNode] = []
        position = 0
        for depth, planned in enumerate(orders.nodes, start=1):
            self.nodes.append(KvNode(planned.key, orders.namespace, orders.path[:depth], position, planned.tokens))
            position += planned.tokens
        self.blocks: list[int] = []
        self.settled = False
        self.offer = Offer(0, 0, [])
        self.local = 0
        self.cached = 0
        self.load_seconds = 0.0
        self.missing: set[tuple[str, Tier]] = set()
        self.forgotten = False
        self.told = False
        self.reached: int | None = None

    @property
    def in_background(self) -> bool:
        """Whether what is offered comes from where loading takes long, so that others should go on meanwhile."""
        return any(self.plan(index).source is Tier.DISK for index in self.offer.nodes)

    @property
    def keys(self) -> set[str]:
        """The keys of the plan's nodes."""
        return {node.key for node in self.nodes}

    def parent(self, index: int) -> str | None:
        """The key of the node in front of one, None for the first."""
        return self.nodes[index - 1].key if index else None

    def plan(self, index: int) -> PlannedNode:
        """What was planned for a node."""
        return self.orders.nodes[index]

    def loadable(self, local: int) -> list[int]:
        """The nodes, by index, that have to be loaded to use all that the plan says is cached.

        They follow each other; where one is missing, nothing behind it is of use. None of them ends within the first
        ``local`` tokens.
        """
        found = []
        for index, node in enumerate(self.nodes):
            if _end(node) <= local:
                continue
            source = self.plan(index).source
            if source is None or (node.key, source) in self.missing:
                break
            found.append(index)
        return found

    def pieces(self, held: "dict[str, tuple[int, ...]]") -> list[Piece]:
        """What to copy where, so that what was offered is there; ``held`` are the blocks of nodes in the GPU tier.

        A block comes from the last of the offered nodes that reaches into it: its page has all that stands before, too.
        """
        local, end, nodes = self.offer
        pieces: list[Piece] = []
        for index in nodes:
            node, planned = self.nodes[index], self.plan(index)
            assert planned.source is not None
            span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
            start = max(span.start, local // self._page_tokens)
            reach = min(_end(node), end)
            last = reach == end or index == nodes[-1]
            stop = -(-reach // self._page_tokens) if last else reach // self._page_tokens
            if start < stop:
                own = held[node.key][start - span.start : stop - span.start] if planned.source is Tier.GPU else ()
                blocks = tuple(self.blocks[start:stop])
                pieces.append(Piece(node.key, planned.source, start - span.start, blocks, planned.pages, own))
            if last:
                break
        return pieces

    def node_blocks(self, index: int) -> tuple[int, ...]:
        """The blocks that a node lies in, once the engine has given them."""
        node = self.nodes[index]
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        return tuple(self.blocks[span.start : span.stop])

    def fall_back(self, tokens: int) -> None:
        """Only the first ``tokens`` tokens are good: what lies behind them has to be computed."""
        self.cached = min(self.cached, tokens)

    def has_reached(self, index: int, tokens: int) -> bool:
        """Whether the blocks of a node are full, or hold all that the prompt has, after its first ``tokens`` tokens."""
        node = self.nodes[index]
        span = pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens)
        prompt_tokens: int = self.request.num_prompt_tokens
        return min(span.stop * self._page_tokens, prompt_tokens) <= tokens

    def resolved(self) -> Resolved:
        """Where the prompt's tokens came from, as it stands."""
        loaded: dict[Tier, int] = {}
        local = min(self.local, self.cached)
        if local:
            loaded[Tier.GPU] = local
        for index, node in enumerate(self.nodes):
            tokens = min(_end(node), self.cached) - max(node.prefix_tokens, local)
            source = self.plan(index).source
            if tokens > 0 and source is not None:
                loaded[source] = loaded.get(source, 0) + tokens
        return Resolved(loaded, self.load_seconds * 1000, self.reached)


def _end(node: KvNode) -> int:
    return node.prefix_tokens + node.tokens
