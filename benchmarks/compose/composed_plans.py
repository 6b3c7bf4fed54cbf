"""Plans for composed prompts without a controller: every document has KV from elsewhere in host memory."""

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.compose.rows import FULL, Way
from benchmarks.measuring.kv_paths import KvPath
from protocol.plans import Donor, PlannedNode, PrefillPlan, Recompute
from protocol.prompts import Prompt, Segment
from protocol.tiers import Tier


class ComposedPlans:
    """Plans for one prompt, whose documents are donated to it.

    The first document is computed where the prompt has it, right behind the system prompt. Each other one is computed
    behind a ``neighbour`` that the prompt does not have, as in a prompt that was asked before (``donors``). All of them
    keep their KV in host memory, whose pages have ``page_tokens`` tokens.
    """

    def __init__(self, prompt: Prompt, neighbour: Segment, page_tokens: int) -> None:
        system, document, *others = prompt.prefix
        self._question = prompt.segments[-1]
        self._first = KvPath((system, document), page_tokens)
        first_page, namespace = self._first.page_count, self._first.namespace
        self._others: list[KvPath] = []
        for other in others:
            path = KvPath((system, neighbour, other), page_tokens, namespace, first_page)
            first_page += path.page_count
            self._others.append(path)
        self._whole = KvPath(prompt.prefix, page_tokens, namespace)

    def donors(self) -> Iterator[PrefillPlan]:
        """The plans that compute the documents' own KV. The first one also keeps the system prompt's."""
        yield self._first.plan(self._question, None, Tier.HOST)
        for path in self._others:
            yield path.plan(self._question, None, [None, None, Tier.HOST])

    def full(self) -> PrefillPlan:
        """A full prefill, which nothing is kept of."""
        return msgspec.structs.replace(self._whole.plan(self._question, None, None), unshared=True)

    def composed(self, way: Way) -> PrefillPlan:
        """A prefill in this way. The first document stands where it was computed, so it is exact."""
        if way.method == FULL:
            return self.full()
        plan = self._whole.plan(self._question, None, None)
        nodes = [*self._exact(plan.nodes), *self._donated(plan.nodes)]
        return msgspec.structs.replace(plan, nodes=tuple(nodes), recompute=Recompute(*way))

    def _exact(self, nodes: Sequence[PlannedNode]) -> Iterator[PlannedNode]:
        for node, pages in zip(nodes, self._first.pages, strict=False):
            yield msgspec.structs.replace(node, source=Tier.HOST, pages=pages)

    def _donated(self, nodes: Sequence[PlannedNode]) -> Iterator[PlannedNode]:
        for node, own in zip(nodes[2:], self._others, strict=True):
            in_front = sum(len(segment.token_ids) for segment in own.segments[:-1])
            donor = Donor(own.keys[-1], Tier.HOST, in_front, own.pages[-1])
            yield msgspec.structs.replace(node, donor=donor)
