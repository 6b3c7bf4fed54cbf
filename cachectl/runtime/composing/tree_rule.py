"""Whether a prompt's facts stand in it as dependency trees."""

import msgspec

from cachectl.runtime.composing.gate import Gate
from protocol.dependency import GraphAttention
from protocol.gate import DEPENDENCY_AT_DEPTH
from protocol.plans import AdmissionRequest, Fallback, Reuse


class TreeRule:
    """Decides by ``attention``, and by what a request asks for: an exact answer has every path in full.

    Nothing stands in trees if the engine has no attention within them (``possible``). AUTO depends on whether that has
    passed the ``gate``.
    """

    def __init__(self, attention: GraphAttention, gate: Gate, *, possible: bool) -> None:
        self._attention = attention
        self._passes = attention is GraphAttention.DEPENDENCY or gate.passes(DEPENDENCY_AT_DEPTH, 0.0)
        self._possible = possible

    def applied(self, request: AdmissionRequest) -> AdmissionRequest:
        """The request with the facts of its prompt in trees, if they may be."""
        if not self._asked(request) or self.fallback(request) is not None:
            return request
        return msgspec.structs.replace(request, prompt=request.prompt.in_trees)

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
