"""Whether a prompt may be composed, and how much of what is donated to it is computed again."""

from cachectl.runtime.composing.gate import Gate
from protocol.errors import InvalidRequest
from protocol.plans import AdmissionRequest, Fallback, Recompute, Reuse


class ReuseRule:
    """Decides by what a request asks for, and by ``reuse`` and ``share`` where it asks for nothing.

    Nothing is composed if the engine cannot (``composable``), whatever is asked for. AUTO depends on whether composing
    by ``method`` passes the ``gate``.
    """

    def __init__(self, reuse: Reuse, share: float, method: str, gate: Gate, *, composable: bool) -> None:
        self._reuse = reuse
        self._share = share
        self._method = method
        self._gate = gate
        self._composable = composable

    def share(self, request: AdmissionRequest) -> float | None:
        """The share of donated tokens to compute again; None if the prompt is not composed.

        Raises InvalidRequest for a share that is not between 0 and 1.
        """
        share = self._asked_share(request)
        if not 0 <= share <= 1:
            raise InvalidRequest(f"the share to compute again is between 0 and 1, not {share:g}", "recompute_share")
        return share if self._asked(request) is not Reuse.EXACT and self.fallback(request) is None else None

    def fallback(self, request: AdmissionRequest) -> Fallback | None:
        """Why a prompt that asks to be composed is not; None if it is, or if it does not ask."""
        asked = self._asked(request)
        if asked is Reuse.EXACT:
            return None
        if not self._composable:
            return Fallback.MODEL
        passes = asked is Reuse.COMPOSED or self._gate.passes(self._method, self._asked_share(request))
        return None if passes else Fallback.GATE

    def recompute(self, share: float) -> Recompute:
        """How a prompt is composed of which ``share`` is computed again."""
        return Recompute(self._method, share, self._gate.bound(self._method, share))

    def _asked(self, request: AdmissionRequest) -> Reuse:
        return request.reuse or self._reuse

    def _asked_share(self, request: AdmissionRequest) -> float:
        return self._share if request.recompute_share is None else request.recompute_share
