"""The speculation benchmark's counts are right, on a small corpus with the fake engine."""

import pytest
from msgspec.structs import replace

from gateway.query.speculation_start import SpeculationStart
from gateway.wire.reply import SpeculationTimings, Timings
from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import FakeEngineSettings, GeneratorSettings
from protocol.plans import DocumentOrder
from ragtree_lab.speculation import SpeculationBenchmark, SpeculationSettings, strict_non_overlapped_ms

SETTINGS = SpeculationSettings(
    vectors=3000,
    dimension=48,
    lists=16,
    top_k=3,
    words=5,
    questions=4,
    max_tokens=2,
    seed=0,
    sweep_questions=4,
    order=DocumentOrder.RETRIEVAL,
)


@pytest.fixture(scope="module")
def steps():
    return []


@pytest.fixture
async def result(tmp_path, steps, monkeypatch):
    # A search of so few vectors is so short that on a busy machine no guess may look worth starting.
    monkeypatch.setattr(SpeculationStart, "worth_starting", lambda *_: True)
    factory = GeneratorFactory(
        GeneratorSettings(
            engine="fake", fake=FakeEngineSettings(prefill_tokens_per_s=100_000, decode_tokens_per_s=10_000)
        ),
        ModelStore(tmp_path / "models"),
    )
    engine = factory.engine()
    await engine.start()
    # Searches of so few vectors are too short for several stages.
    benchmark = SpeculationBenchmark(
        SETTINGS, tmp_path / "corpus", tmp_path / "profiles", lambda *step: steps.append(step), stage_ms=1e-6
    )
    await benchmark.prepare()
    yield await benchmark.run(engine, factory.layout(), [0.25, 1.0], [50.0], 1.0)
    await engine.close()


async def test_both_modes_get_the_same_questions(result, steps):
    assert (result.engine, result.vectors, result.dimension, result.order) == ("fake", 3000, 48, "retrieval")
    assert [row.search_ratio for row in result.rows] == [0.25, 1.0]
    for row in result.rows:
        assert row.non_overlapped_ms.off == pytest.approx(row.search_ms), "nothing overlaps without speculation"
        # The slowdown is a quotient, so the product may have a rounding error.
        assert 0 < row.non_overlapped_ms.on <= row.search_ms * row.search_slowdown * (1 + 1e-9)
        assert row.non_overlapped_ratio == row.non_overlapped_ms.off / row.non_overlapped_ms.on
        strict = row.strict_non_overlapped_ms
        assert strict.off == row.search_ms
        assert row.non_overlapped_ms.on <= strict.on * (1 + 1e-9), "the strict count overlaps less"
        assert 0 < strict.on <= row.search_ms * row.search_slowdown * (1 + 1e-9)
        assert row.strict_non_overlapped_ratio == strict.off / strict.on
        assert row.ttft_ratio == row.ttft_ms.off / row.ttft_ms.on
        assert 0 <= row.confirmed <= 1
        assert row.generations >= row.confirmed
    assert any(row.confirmed for row in result.rows), "no speculation was confirmed"
    (swept,) = result.sweep
    assert swept.rate == 50
    assert swept.p99_on_over_off == swept.p99_ttft_ms.on / swept.p99_ttft_ms.off
    assert {name for name, *_ in steps} >= {"ingesting", "opening the index", "search ratio 1", "rates"}


SEARCH = Timings(
    queue_ms=0.0,
    retrieval_ms=100.0,
    stages_ms=(50.0, 100.0),
    non_overlapped_ms=20.0,
    speculation=None,
    kv_load_ms=0.0,
    prefill_ms=5.0,
    ttft_ms=110.0,
    total_ms=120.0,
    overtakes=0,
)


@pytest.mark.parametrize(
    ("speculation", "strict_ms"),
    [
        (None, 100),
        # The final prompt reuses the wrong guess, which counts only for us.
        (SpeculationTimings("dropped", 1, None, 0, 80.0), 100),
        (SpeculationTimings("confirmed", 2, 70.0, 0, 80.0), 70),
        # The search ended while the controller was asked.
        (SpeculationTimings("confirmed", 1, 101.0, 0, 0.0), 100),
    ],
)
def test_strict_count_overlaps_only_the_confirmed_speculation(speculation, strict_ms):
    assert strict_non_overlapped_ms(replace(SEARCH, speculation=speculation)) == strict_ms
