"""Advice: one line each, where all works but could be better."""

import pytest
from doctor_cases import doctor_context

from examine.doctor.checks.engines import HostSize
from examine.doctor.checks.first_tokens import Bandwidths, judged
from examine.doctor.checks.machine import Instructions, OtherWork, Preloads
from examine.doctor.context import ALONE, CROWDED, Surroundings, TierRounds
from examine.doctor.outcome import Status
from examine.measuring.engines import Generation
from protocol.generation import PrefillResult
from protocol.kv import KvMemory, KvRead
from protocol.tiers import Tier

MEMORY = KvMemory("f", "b", 32, 1 << 20, gpu_pages=100, host_pages=256, disk_pages=256, host_bytes_per_s=1.0,
                  disk_bytes_per_s=1.0)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "status", "figure"),
    [
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", Status.PASSED, "amx_bf16, avx512_bf16, avx512f, avx2"),
        ("fpu avx2", Status.WARNING, "avx2"),
        ("fpu", Status.WARNING, "none of those that vLLM uses"),
    ],
)
async def test_a_cpu_without_bfloat16_is_noticed(tmp_path, monkeypatch, flags, status, figure):
    monkeypatch.setattr("examine.doctor.checks.machine.has_gpu", lambda: False)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    found = await Instructions(cpuinfo).run(None)
    assert (found.status, found.figure) == (status, figure)
    assert (status is Status.WARNING) == ("neither AMX nor AVX512-BF16" in found.why)


async def test_libraries_that_are_not_preloaded_are_named_with_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr("examine.doctor.checks.machine.has_gpu", lambda: False)
    found = await Preloads({}, [tmp_path]).run(None)
    assert found.status is Status.WARNING
    assert found.why.endswith("libtcmalloc and libiomp5 on a CPU: install them and set LD_PRELOAD")
    library = tmp_path / "libiomp5.so"
    library.touch()
    found = await Preloads({"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}, [tmp_path]).run(None)
    assert found.why == f"vLLM recommends to preload libiomp5 on a CPU: start with LD_PRELOAD={library}"
    loaded = {"LD_PRELOAD": f"/usr/lib/libtcmalloc.so.4:{library}"}
    assert (await Preloads(loaded, [tmp_path]).run(None)).status is Status.PASSED


@pytest.mark.parametrize("check", [Instructions(), Preloads()])
async def test_a_gpu_needs_no_advice_about_the_cpu(monkeypatch, check):
    monkeypatch.setattr(f"{type(check).__module__}.has_gpu", lambda: True)
    assert (await check.run(None)).status is Status.SKIPPED


@pytest.mark.parametrize(("host_gib", "status"), [(0.05, Status.WARNING), (0.5, Status.PASSED), (0, Status.SKIPPED)])
async def test_host_memory_smaller_than_the_engines_own_is_noticed(tmp_path, host_gib, status):
    with doctor_context(tmp_path, kv={"host_gib": host_gib}) as context:
        context.memory = MEMORY
        found = await HostSize().run(context)
    assert found.status is status
    if status is Status.WARNING:
        assert found.why.endswith("raise generator.kv.host_gib to 0.2")


TIMES = {"plain": 800.0, "floor": 50.0, "gpu": 51.0, "host": 60.0, "disk": 75.0}


def test_tiers_that_are_faster_than_computing_pass():
    found = judged(TIMES, (Tier.HOST, Tier.DISK))
    assert found.status is Status.PASSED
    assert found.figure == (
        "computed 800 ms, floor 50 ms, gpu 51 ms (1.02 x), host 60 ms (1.20 x), disk 75 ms (1.50 x)"
    )


def test_a_disk_that_is_slower_than_computing_is_noticed():
    found = judged(TIMES | {"disk": 900.0}, (Tier.HOST, Tier.DISK))
    assert found.status is Status.WARNING
    assert found.why.startswith("KV from disk comes later than computed KV")
    assert "generator.kv.disk_gib" in found.why


def loaded(tier: Tier, load_ms: float, waited_ms: float | None = None) -> Generation:
    reads = (KvRead("", 1, waited_ms / 1000, tier=tier),) if waited_ms is not None else ()
    return Generation(1.0, PrefillResult(1, 1, 1.0, load_ms, loaded={tier: 1}, reads=reads), "", ())


@pytest.mark.parametrize(
    ("size", "disk_ms", "status"),
    [(16_000_000, 4.0, Status.PASSED), (16_000_000, 40.0, Status.WARNING), (1_000_000, 40.0, Status.PASSED)],
    ids=["fast", "slow", "too small to tell"],
)
async def test_a_slow_tier_is_noticed(tmp_path, size, disk_ms, status):
    took = {Tier.HOST: loaded(Tier.HOST, 2.0), Tier.DISK: loaded(Tier.DISK, disk_ms, disk_ms + 5)}
    with doctor_context(tmp_path) as context:
        context.memory = MEMORY
        context.measured = TierRounds(size, [took, took, took], [8e9] * 3, [4e9] * 3)
        found = await Bandwidths().run(context)
    assert found.status is status
    if disk_ms == 4.0:
        assert (
            found.figure
            == "host 8.0 GB/s (1.00 of a memory copy), disk 4.0 GB/s (1.00 of a file read) and 5.0 ms a load"
        )
    if status is Status.WARNING:
        assert found.why.startswith("loads from disk reach only 10% of a file read")


@pytest.mark.parametrize(
    ("surroundings", "said"),
    [
        (Surroundings(busy_share=0.1), ""),
        (Surroundings(busy_share=0.9), "other processes use the machine"),
        (Surroundings("http://127.0.0.1:8080"), "a stack runs at http://127.0.0.1:8080"),
    ],
    ids=["idle", "busy", "stack"],
)
async def test_a_doctor_does_less_beside_other_work(tmp_path, surroundings, said):
    with doctor_context(tmp_path, surroundings) as context:
        found = await OtherWork().run(context)
    assert found.why.startswith(said)
    assert found.status is (Status.WARNING if said else Status.PASSED)
    assert surroundings.crowded == bool(said)
    assert CROWDED.prompts < ALONE.prompts
    assert (CROWDED.threads, ALONE.threads) == (1, None)
