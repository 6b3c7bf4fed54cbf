"""The speculation benchmark's counts are right, on a small corpus with the fake engine."""

import pytest

from benchmarks.speculation import SpeculationBenchmark, SpeculationSettings
from gateway.query.speculation_start import SpeculationStart
from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import FakeEngineSettings, GeneratorSettings
from protocol.plans import DocumentOrder

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
        assert row.ttft_ratio == row.ttft_ms.off / row.ttft_ms.on
        assert 0 <= row.confirmed <= 1
        assert row.generations >= row.confirmed
    assert any(row.confirmed for row in result.rows), "no speculation was confirmed"
    (swept,) = result.sweep
    assert swept.rate == 50
    assert swept.p99_on_over_off == swept.p99_ttft_ms.on / swept.p99_ttft_ms.off
    assert {name for name, *_ in steps} >= {"ingesting", "opening the index", "search ratio 1", "rates"}
