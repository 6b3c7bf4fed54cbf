"""State of one request whose plan the scheduler side executes."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from generator.connector.messages import Composed, Prefilled
from generator.connector.scheduler.request_blocks import NULL_BLOCK, PlacedDocuments, RequestBlocks, in_order
from generator.connector.step_jobs import BlockCopy, Composition, DonorPages, Load, Piece, copy_of
from protocol.dependency import DependencyTrees
from protocol.kv import KvNode, KvRead, LostCopy, Pages, Paging
from protocol.plans import Donor, PlannedNode, PrefillPlan
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Offer(NamedTuple):
    """What a request can load: tokens from ``local``, the start of a block, up to ``end``, out of ``nodes``.

    If there are ``donated`` nodes, the tokens after ``nodes``, up to the last donated one's end, are composed or
    computed, also in the background. So is what comes before the prompt's ``trees``, and these.
    """

    local: int
    end: int
    nodes: list[int]
    donated: list[int] = []  # noqa: RUF012 - never changed
    trees: DependencyTrees | None = None

    @property
    def composes(self) -> bool:
        """Whether anything is composed."""
        return bool(self.donated) or self.trees is not None


class PlannedRequest:
    """A request, its plan, and how far the engine has executed it.

    - ``nodes``: the nodes of the ``plan`` with their positions in the prompt.
    - ``blocks``: the blocks that the engine has allocated to the request, by group.
    - ``offer``: what the engine was last offered to load. ``within_step``: whether what it reads in host
      memory is held, so that it loads within the step that computes the rest.
    - ``local``: tokens that the engine found in its own cache. ``cached``: ``local`` plus what was loaded or
      composed. ``exact``: those before the composed part.
    - ``missing``: copies that were planned as sources and could not be read.
    - ``silent``: locations that did not serve a copy. The request asks them for no other one: each costs a timeout.
    - ``reads``: what was read of tiers, as far as it was timed.
    - ``nodes_kept``: whether the nodes are already kept as planned.
    - ``forgotten``: whether a document was deleted meanwhile, so that nothing of this request may be found later.
    - ``reached``: set if a speculative request ended before its first token; prompt tokens computed by then.
    - ``reported``: whether the request's prefill has been reported.
    - ``composed``: how the request was composed, if it was. ``composing``: whether that was begun after the last load.
      ``not_composed``: whether it failed.
    """

    def __init__(self, request: "Request", plan: PrefillPlan, path: Sequence[str], paging: Paging) -> None:
        """``path`` has the content hashes of the documents at the start of the prompt."""
        self.request = request
        self.plan = plan
        self.path = tuple(path)
        self._paging = paging
        self.nodes: list[KvNode] = []
        position = 0
        for depth, planned in enumerate(plan.nodes, start=1):
            self.nodes.append(KvNode(planned.key, plan.namespace, self.path[:depth], position, planned.tokens))
            position += planned.tokens
        self.blocks = RequestBlocks(paging)
        self.nodes_kept = False
        self.offer = Offer(0, 0, [])
        self.within_step = False
        self.composed: Composed | None = None
        self.composing = False
        self.not_composed = False
        self.local = 0
        self.cached = 0
        self.exact = 0
        self.load_seconds = 0.0
        self.missing: set[LostCopy] = set()
        self.silent: set[str] = set()
        self.reads: list[KvRead] = []
        self.forgotten = False
        self.reported = False
        self.reached: int | None = None

    @property
    def loads_in_background(self) -> bool:
        """Whether the offer composes, or has nodes below the GPU that are not held: copies may be slow, or missing.

        Or it ends with a block of states: vLLM moves those into the next block before it lets copies be made.
        """
        below = any(self.planned(index).source is not Tier.GPU for index in self.offer.nodes) and not self.within_step
        return self.offer.composes or below or bool(self.offer.nodes and self._paging.ends_states_at(self.offer.end))

    def copies_in_host(self) -> dict[str, Pages]:
        """The copies in this machine's memory that the offer reads, by node; none if it cannot load within a step.

        Then a copy is elsewhere, or does not have the node's pages, which is found out in the background.
        """
        if self.offer.composes or self._paging.has_states:
            return {}
        copies: dict[str, Pages] = {}
        for index in self.offer.nodes:
            node, planned = self.nodes[index], self.planned(index)
            if planned.source is Tier.GPU:
                continue
            count = self._paging.page_count(node.prefix_tokens, node.tokens)
            if planned.source is not Tier.HOST or planned.pages is None or len(planned.pages.numbers) != count:
                return {}
            copies[node.key] = planned.pages
        return copies

    @property
    def saves(self) -> bool:
        """Whether the plan has nodes saved below the GPU after the first token."""
        return any(node.saved_to is not None for node in self.plan.nodes)

    @property
    def keys(self) -> set[str]:
        """The keys of the plan's nodes."""
        return {node.key for node in self.nodes}

    def parent(self, index: int) -> str | None:
        """The key of the node before a node, or None for the first."""
        return self.nodes[index - 1].key if index else None

    def planned(self, index: int) -> PlannedNode:
        """What the plan says about a node."""
        return self.plan.nodes[index]

    def make_offer(self, local: int, held: Container[str]) -> Offer:
        """Set ``offer`` to what can be loaded after the first ``local`` tokens; ``held`` are the GPU tier's nodes."""
        found = self.loadable(local, held)
        # The last token of a prompt is always computed: the next token is sampled from it.
        last: int = self.request.num_tokens - 1
        while self._paging.has_states and found and _end(self.nodes[found[-1]]) > last:
            # There are states at the ends of nodes only.
            found.pop()
        donated = self._donated(len(found), held)
        trees = self.plan.trees if self.plan.trees is not None and self._can_compose else None
        reached = donated or found
        end = trees.end if trees is not None else _end(self.nodes[reached[-1]]) if reached else 0
        self.offer = Offer(local, max(local, min(end, last)), found, donated, trees)
        self.within_step = False
        return self.offer

    def copies_offered(self) -> Iterator[tuple[str, Tier | None]]:
        """The copies at this location that the offer reads, by key and tier."""
        for index in self.offer.nodes:
            planned = self.planned(index)
            if planned.peer is None:
                yield planned.key, planned.source
        for index in self.offer.donated:
            donor = self.planned(index).donor
            assert donor is not None
            if donor.peer is None:
                yield donor.key, donor.source

    def loadable(self, local: int, held: Container[str]) -> list[int]:
        """The nodes, by index, to load so that everything the plan calls cached is used.

        The nodes are consecutive and end after the first ``local`` tokens. The first missing copy ends the list,
        because nothing after it is of use. ``held`` are the keys of the nodes in the GPU tier.
        """
        found = []
        for index, node in enumerate(self.nodes):
            if _end(node) <= local:
                continue
            if not self._can_read(self.planned(index), held):
                break
            found.append(index)
        return found

    def _can_read(self, source: PlannedNode | Donor, held: Container[str]) -> bool:
        """Whether what a plan reads can be there. ``held`` are the keys of the nodes in the GPU tier."""
        copy = copy_of(source)
        if copy is None or copy in self.missing or copy.location in self.silent:
            return False
        return copy.tier is not Tier.GPU or copy.node in held

    def _donated(self, exact: int, held: Container[str]) -> list[int]:
        """The nodes, by index, after the first ``exact`` ones whose donors can be read now."""
        if self.plan.recompute is None or not self._can_compose:
            return []
        return [
            index
            for index in range(exact, len(self.nodes))
            if (donor := self.planned(index).donor) is not None and self._can_read(donor, held)
        ]

    @property
    def _can_compose(self) -> bool:
        """Whether the request was neither interrupted nor failed to be composed.

        Once interrupted, it has its own KV, which its blocks no longer tell apart.
        """
        interrupted = self.request.num_preemptions or self.request.num_computed_tokens
        return not (self.not_composed or interrupted)

    def composition(self, front_failed: bool = False) -> Composition | None:
        """What the offer composes, of the donors that are not missing.

        If what is in front could not be loaded, only trees are composed, and that is computed with them.
        """
        if front_failed and self.offer.trees is None:
            return None
        if front_failed:
            self.exact = self.local
        return Composition(
            tuple(self.request.all_token_ids),
            tuple(self.blocks.groups[0]),
            self.exact,
            tuple(donor for donor in self._donors({}) if donor.copy not in self.missing),
            self.offer.end,
            self.offer.end if self.offer.trees is not None else _end(self.nodes[-1]),
            self.plan.recompute,
            self.plan.namespace,
            self.offer.trees,
        )

    def _donors(self, held: Mapping[str, tuple[int, ...]]) -> Iterator[DonorPages]:
        for index in self.offer.donated:
            node, donor = self.nodes[index], self.planned(index).donor
            assert donor is not None
            blocks = held.get(donor.key, ()) if donor.source is Tier.GPU else ()
            yield DonorPages(donor, (node.namespace, node.path[-1]), node.prefix_tokens, _end(node), blocks)

    def load_of(self, held: Mapping[str, tuple[int, ...]], spare_blocks: Callable[[int], list[int]]) -> Load:
        """The load that carries out the offer; ``held`` are the blocks of the nodes in the GPU tier.

        If several offered nodes reach into one block, it is copied from the last one, whose page also has the
        tokens in front. ``spare_blocks`` gives that many free blocks, or none, for the windows of nodes that are to be
        kept and end before the request's own window, and for their states.
        """
        pieces: list[Piece] = []
        copies: list[BlockCopy] = []
        for group in range(len(self._paging.groups)):
            for index, first, blocks in self._filled(group):
                planned = self.planned(index)
                if planned.source is Tier.GPU:
                    own = held[planned.key][first : first + len(blocks)]
                    copies += [BlockCopy(*pair) for pair in zip(own, blocks, strict=True)]
                else:
                    pieces.append(Piece(planned, first, blocks))
        windows: dict[str, tuple[int, ...]] = {}
        for index in self.offer.nodes if self._paging.has_windows else ():
            planned, window = self.planned(index), self.blocks.window_of(self.nodes[index])
            # After a preemption, a node may have kept its window.
            if not _is_made(planned) or planned.key in self.blocks.windows:
                continue
            missing = [number for number, block in window.items() if block == NULL_BLOCK]
            missing += self.blocks.states_of(self.nodes[index])
            spare = dict(zip(missing, spare_blocks(len(missing)), strict=False))
            if len(spare) == len(missing):
                pieces += [Piece(planned, number, (block,)) for number, block in spare.items()]
                windows[planned.key] = in_order(window | spare)
        composition = self.composition() if self.offer.composes else None
        donors = tuple(self._donors(held))
        return Load(self.request.request_id, tuple(pieces), tuple(copies), donors, composition, windows)

    def _filled(self, group: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Which pages the offer loads in a group: by node, from the first page on, as counted in it, into blocks."""
        local, end, nodes, *_ = self.offer
        size = self._paging.group_tokens(group)
        needed = max(local, self._paging.groups[group].first_attended(end))
        for index in nodes:
            node = self.nodes[index]
            spans = list(self._paging.spans(node.prefix_tokens, node.tokens))
            start = max(spans[group].start, needed // size)
            reach = min(_end(node), end)
            last = reach == end or index == nodes[-1]
            stop = -(-reach // size) if last else reach // size
            while start < stop and self.blocks.groups[group][start] == NULL_BLOCK:
                # What vLLM has no block for, nothing attends to. Nothing may be written to this one.
                start += 1
            if start < stop:
                in_front = sum(len(span) for span in spans[:group])
                yield index, in_front + start - spans[group].start, tuple(self.blocks.groups[group][start:stop])
            if last:
                break

    def ends_between(self, begin: int, end: int) -> Iterator[KvNode]:
        """The nodes to keep that end after the first ``begin`` tokens and not after the first ``end``."""
        for index, node in enumerate(self.nodes):
            if begin < _end(node) <= end and _is_made(self.planned(index)):
                yield node

    def tokens_to_node_end(self, start: int) -> int:
        """How many tokens after the first ``start`` ones the next node to keep ends; 0 if none does."""
        prompt_tokens: int = self.request.num_prompt_tokens
        ends = self.ends_between(start, prompt_tokens) if not self.nodes_kept else iter(())
        return next((_end(node) - start for node in ends), 0)

    @cached_property
    def documents(self) -> PlacedDocuments:
        """Where the request's documents stand."""
        return PlacedDocuments(self.plan.namespace, self.path, tuple(self.nodes))

    def accepted(self, external: int) -> None:
        """Count ``external`` tokens of the offer as cached: the engine has blocks for them."""
        local, _, nodes, *_ = self.offer
        self.local, self.cached = local, local + external
        front = max(local, _end(self.nodes[nodes[-1]])) if nodes else local
        self.exact = front if self.offer.composes else self.cached

    def limit_cached(self, tokens: int) -> None:
        """Count at most the first ``tokens`` tokens as cached: the engine computes what follows them."""
        self.cached = min(self.cached, tokens)

    def has_reached(self, index: int, tokens: int) -> bool:
        """Whether a node's blocks are complete after ``tokens`` tokens: full, or filled to the end of the prompt."""
        node = self.nodes[index]
        prompt_tokens: int = self.request.num_prompt_tokens
        spans = enumerate(self._paging.spans(node.prefix_tokens, node.tokens))
        last = max(span.stop * self._paging.group_tokens(group) for group, span in spans)
        return min(last, prompt_tokens) <= tokens

    def prefilled(self) -> Prefilled:
        """Which tier, here or at a peer, the prompt's tokens came from, so far."""
        loaded: dict[Tier, int] = {}
        exact = min(self.exact, self.cached)
        local = min(self.local, exact)
        if local:
            loaded[Tier.GPU] = local
        for index, node in enumerate(self.nodes):
            tokens = min(_end(node), exact) - max(node.prefix_tokens, local)
            source = self.planned(index).loaded_from
            if tokens > 0 and source is not None:
                loaded[source] = loaded.get(source, 0) + tokens
        return Prefilled(loaded, self.load_seconds * 1000, self.reached, self.composed, tuple(self.reads))


def _is_made(planned: PlannedNode) -> bool:
    """Whether a copy of the node is made out of the request's blocks."""
    return planned.saved_to is not None or (planned.kept is Tier.GPU and planned.source is not Tier.GPU)


def _end(node: KvNode) -> int:
    return node.prefix_tokens + node.tokens
