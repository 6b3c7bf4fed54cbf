"""The composing of KV in the controller: which prompts may be composed, and which may have facts in trees."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from protocol.atomic_files import write_atomically
from protocol.dependency import GraphAttention
from protocol.errors import InvalidRequest
from protocol.gate import DEPENDENCY_AT_DEPTH, GateReport, current_version
from protocol.plans import AdmissionRequest, Fallback, Recompute, Reuse

_log = structlog.get_logger(__name__)


class Gate:
    """What is known about composing the KV of one model. Without ``reports``, nothing passes."""

    def __init__(self, reports: Sequence[GateReport] = ()) -> None:
        self.reports = tuple(reports)

    def passes(self, method: str, share: float) -> bool:
        """Whether composing has passed with this selector, and with this share of tokens computed again or less."""
        return any(report.passed for report in self._about(method, share))

    def bound(self, method: str, share: float) -> float | None:
        """The deviation up to which a composed prompt is used, from the report on the nearest share; None: any."""
        nearest = max(self._about(method, share), key=lambda report: report.share, default=None)
        return None if nearest is None else nearest.bound

    def _about(self, method: str, share: float) -> Iterator[GateReport]:
        return (report for report in self.reports if report.method == method and report.share <= share)


class GateFolder:
    """Keeps gates in a folder of ``cache_dir``, a file for each fingerprint of KV."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "gates"

    def read(self, fingerprint: str) -> Gate:
        """The gate of a fingerprint. Nothing passes it if there is no file, or a broken one."""
        try:
            reports = msgspec.json.decode(self._file(fingerprint).read_bytes(), type=list[GateReport])
        except FileNotFoundError:
            return Gate()
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("the gate's file cannot be read, so nothing passes; run the gate again", reason=str(error))
            return Gate()
        if any(report.fingerprint != fingerprint for report in reports):
            _log.warning("the gate's file is of another model, so nothing passes; run the gate again")
            return Gate()
        current = [report for report in reports if report.selection == current_version(report.method)]
        if len(current) < len(reports):
            _log.warning("what was examined with an earlier version is ignored; run the gate for it again")
        return Gate(current)

    def all(self) -> Iterator[GateReport]:
        """The reports of all fingerprints whose files can be read."""
        for file in sorted(self._folder.glob("*.json")):
            yield from self.read(file.stem).reports

    def add(self, report: GateReport) -> None:
        """Add a report, in place of one on the same selector and share. Raises OSError."""
        same = report.method, report.share
        others = (old for old in self.read(report.fingerprint).reports if (old.method, old.share) != same)
        content = msgspec.json.format(msgspec.json.encode([*others, report]))
        # The caches of a machine are for all of its users.
        write_atomically(self._file(report.fingerprint), content, mode=0o644)

    def _file(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"


class ReuseRule:
    """Decides by what a request asks for, and by ``reuse`` and ``share`` where it asks for nothing.

    Nothing is composed if the engine cannot (``composable``), even if that is asked for. AUTO depends on whether
    composing by ``method`` passes the ``gate``.
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
