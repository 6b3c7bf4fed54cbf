"""Whether a document's KV can serve at other positions, and what the gate has found out about the answers."""

from cachectl.runtime.composing import GateFolder
from examine.doctor.checks.caching_engine import CachingEngine
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome


class ComposedReuse:
    """Asks the engine whether it can compose, and looks up the gate's reports on this model."""

    name = "composed reuse"
    needs = (CachingEngine.name,)

    def __init__(self, gates: GateFolder) -> None:
        self._gates = gates

    async def run(self, context: Context) -> Outcome:
        """Passes also without a passed gate: then every prompt is served exactly."""
        info = await context.engine.running.info()
        if info.kv is None or info.composing is None:
            return Outcome.skipped(info.not_composing or "the engine keeps no KV")
        reports = self._gates.read(info.kv.fingerprint).reports
        if not reports:
            return Outcome.passed("possible; no gate was run, so `auto` composes nothing: `ragtree gate run`")
        found = [
            f"{report.method} {report.share:.0%} {'passes' if report.passed else 'does not pass'} the gate"
            for report in reports
        ]
        return Outcome.passed(f"possible; {', '.join(found)}")
