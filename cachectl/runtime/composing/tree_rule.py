"""Whether a prompt's facts stand in it as dependency trees."""

import msgspec

from cachectl.runtime.composing.gate import Gate
from protocol.dependency import DependencyTrees, GraphAttention, TreePositions
from protocol.gate import dependency_method
from protocol.plans import AdmissionRequest, Fallback, Reuse


class TreeRule:
    """Decides by ``attention``, and by what a request asks for: an exact answer has every path in full.

    In trees, facts have the given ``positions``. Nothing stands in trees if the engine has no attention within them
    (``possible``). AUTO depends on whether that has passed the ``gate``.
    """

    def __init__(self, attention: GraphAttention, positions: TreePositions, gate: Gate, *, possible: bool) -> None:
        self._attention = attention
        self._positions = positions
        self._passes = attention is GraphAttention.DEPENDENCY or gate.passes(dependency_method(positions), 0.0)
        self._possible = possible

    def applied(self, request: AdmissionRequest) -> AdmissionRequest:
        """The request with the facts of its prompt in trees, if they may be."""
        if not self._asked(request) or self.fallback(request) is not None:
            return request
        return msgspec.structs.replace(request, prompt=request.prompt.in_trees)

    def trees(self, request: AdmissionRequest) -> DependencyTrees | None:
        """Where the request's prompt has trees, if its facts stand in them."""
        trees = request.prompt.trees
        return None if trees is None else msgspec.structs.replace(trees, positions=self._positions)

    def fallback(self, request: AdmissionRequest) -> Fallback | None:
        """Why facts that were to be in trees are told in full; None if they are not, or if there are none."""
        if not self._asked(request):
            return None
        if not self._possible:
            return Fallback.MODEL
        return None if self._passes else Fallback.GATE

    def _asked(self, request: AdmissionRequest) -> bool:
        """Whether the request has facts that are to stand in trees."""
        has_facts = request.prompt.facts is not None
        return has_facts and self._attention is not GraphAttention.SELF and request.reuse is not Reuse.EXACT
