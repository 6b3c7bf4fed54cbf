"""Plans for composed prompts without a controller: every document has KV from elsewhere in host memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from examine.composing.rows import FULL, Way
from examine.measuring.kv_paths import KvPath
from protocol.kv import Pages
from protocol.plans import Donor, PlannedNode, PrefillPlan, Recompute
from protocol.prompts import Segment
from protocol.tiers import Tier


class ComposedPlans:
    """Plans for prompts that begin with the same segments: the system prompt and documents, which are donated.

    Each document but the first has KV that was computed elsewhere, as in prompts that were asked before: by turns right
    behind the system prompt, and behind a ``neighbour`` that the prompts do not have. The documents as they stand in
    the prompts have KV, too, for ``full``. All of it is in host memory, whose pages have ``page_tokens`` tokens.
    """

    def __init__(self, prefix: Sequence[Segment], neighbour: Segment, page_tokens: int) -> None:
        system, _, *others = prefix
        self._whole = KvPath(prefix, page_tokens)
        namespace = self._whole.namespace
        behind = KvPath((system, neighbour), page_tokens, namespace, self._whole.page_count)
        first_page = self._whole.page_count + behind.page_count
        self._others: list[KvPath] = []
        for number, other in enumerate(others):
            in_front = (system, neighbour) if number % 2 else (system,)
            path = KvPath((*in_front, other), page_tokens, namespace, first_page)
            first_page += path.page_count
            self._others.append(path)
        self._behind = behind
        self._front = [self._whole.pages[0], behind.pages[1]]

    def prepare(self, question: Segment) -> Iterator[PrefillPlan]:
        """The plans that compute and keep all KV."""
        yield self._whole.plan(question, None, Tier.HOST)
        yield _loading(self._behind.plan(question, None, [None, Tier.HOST]), self._front[:1])
        for path in self._others:
            kept = [*[None] * (len(path.segments) - 1), Tier.HOST]
            yield _loading(path.plan(question, None, kept), self._front[: len(kept) - 1])

    def full(self, question: Segment) -> PrefillPlan:
        """A prompt whose documents have the KV of a full prefill."""
        return _loading(self._whole.plan(question, None, None), self._whole.pages)

    def computed(self, question: Segment) -> PrefillPlan:
        """A full prefill of a prompt, which nothing is kept of."""
        return msgspec.structs.replace(self._whole.plan(question, None, None), unshared=True)

    def composed(self, question: Segment, way: Way) -> PrefillPlan:
        """A prefill in this way. The first document stands where it was computed, so it is exact."""
        if way.method == FULL:
            return self.computed(question)
        plan = _loading(self._whole.plan(question, None, None), self._whole.pages[:2])
        nodes = (*plan.nodes[:2], *self._donated(plan.nodes[2:]))
        return msgspec.structs.replace(plan, nodes=nodes, recompute=Recompute(*way))

    def _donated(self, nodes: Iterable[PlannedNode]) -> Iterator[PlannedNode]:
        for node, own in zip(nodes, self._others, strict=True):
            in_front = sum(len(segment.token_ids) for segment in own.segments[:-1])
            donor = Donor(own.keys[-1], Tier.HOST, in_front, own.pages[-1])
            yield msgspec.structs.replace(node, donor=donor)


def _loading(plan: PrefillPlan, pages: Sequence[Pages]) -> PrefillPlan:
    """The plan, with its first nodes loaded from these pages of host memory."""
    loaded = (
        msgspec.structs.replace(node, source=Tier.HOST, pages=own) for node, own in zip(plan.nodes, pages, strict=False)
    )
    return msgspec.structs.replace(plan, nodes=tuple(chain(loaded, plan.nodes[len(pages) :])))
