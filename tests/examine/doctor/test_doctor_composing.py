"""What the doctor says about composed reuse."""

from types import SimpleNamespace

import msgspec
from doctor_cases import doctor_context

from cachectl.runtime.composing import GateFolder
from examine.doctor.checks.engines import ComposedReuse
from examine.doctor.outcome import Status
from protocol.gate import SELECTION, GateReport
from protocol.generation import ComposingInfo, EngineInfo
from protocol.kv import KvMemory

KV = KvMemory("f1", "b", 16, 1600, 9, 0, 0, 1.0, 1.0)
REPORT = GateReport("f1", "a model", "query", 0.2, True, "", (), 0.98, 0.01, 0.5, 1000.0, SELECTION)


async def found(folder, composing, reason="", reports=()):
    gates = GateFolder(folder)
    for report in reports:
        gates.add(report)
    info = EngineInfo("a model", "vllm", 100, kv=KV, composing=composing, not_composing=reason)

    async def answer():
        return info

    with doctor_context(folder) as context:
        context.engine = SimpleNamespace(running=SimpleNamespace(info=answer))
        return await ComposedReuse(gates).run(context)


async def test_a_passed_gate_is_shown(tmp_path):
    outcome = await found(
        tmp_path,
        ComposingInfo(0.0, ("query",)),
        reports=[REPORT, msgspec.structs.replace(REPORT, share=0.1, passed=False)],
    )
    assert outcome.status is Status.PASSED
    assert outcome.figure == "possible; query 20% passes the gate, query 10% does not pass the gate"


async def test_without_a_gate_the_command_is_named(tmp_path):
    outcome = await found(tmp_path, ComposingInfo(0.0, ("query",)))
    assert outcome.status is Status.PASSED
    assert outcome.figure.endswith("`ragtree gate run`")


async def test_a_model_that_cannot_be_composed_is_skipped_with_the_reason(tmp_path):
    outcome = await found(tmp_path, None, "its layers have sliding windows")
    assert (outcome.status, outcome.why) == (Status.SKIPPED, "its layers have sliding windows")
