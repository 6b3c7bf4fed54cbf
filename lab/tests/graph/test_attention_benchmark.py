"""Attention over facts, measured on real engines with a tiny model."""

import random

import pytest
from tiny_models import llama, make_tiny_model

from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import ConfigError
from protocol.graph import Path, Source
from ragtree_lab.graph.attention.benchmark import AttentionBenchmark
from ragtree_lab.graph.attention.slo_throughput import COMPARED, Ladder, SloThroughput
from ragtree_lab.graph.attention.ways import WAYS
from ragtree_lab.graph.facts import Facts

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.prove("lab/ragtree_lab/graph/attention/", "generator/composing/dependency/"),
]

ONE_RATE = Ladder(idle=1, first=0.5, least_rates=1, most_rates=1, least_prompts=2, most_prompts=2)
SOURCE = Source("a document", 0, "hash")


def facts(question: int) -> Facts:
    """Two of five roots, each with the same paths in every question."""
    draws = random.Random(question)
    paths = [
        Path((f"r{root}", f"m{root}{middle}", f"l{leaf}"), ("-to->", "-on->"), (SOURCE, SOURCE), 0.5)
        for root in draws.sample(range(5), 2)
        for middle in range(2)
        for leaf in range(3)
    ]
    return Facts(f"What is {question}?", ["x"], paths)


async def test_ways_are_compared_over_the_same_facts(tmp_path):
    settings = GeneratorSettings(
        model=str(make_tiny_model(tmp_path / "model", llama())),
        max_model_len=1024,
        dtype="float32",
        system_prompt="Answer.",
        preamble="",
        kv=KvSettings(host_gib=0.1, host_dir=tmp_path),
        engine_args={"num_gpu_blocks_override": 400},
    )
    at_slo = SloThroughput(ONE_RATE, lambda *_: None)
    benchmark = AttentionBenchmark.over(settings, tmp_path, at_slo, 6, lambda *_: None)
    with pytest.raises(ConfigError, match="so many tokens of facts"):
        await benchmark.run({"made up": [facts(1)]}, [200])
    result = await benchmark.run({"made up": [facts(number) for number in range(14)]}, [200])
    (row,) = result.attention
    assert (row.set, row.prompts) == ("made up", 4)
    assert row.ttft_ms.keys() == result.throughput.keys() == set(WAYS)
    assert min(row.ttft_ms.values()) > 0
    assert row.tree_tokens < row.context_tokens <= 200
    # Each root was asked about before.
    assert row.hit_share > 0.5
    assert 0.5 < row.redundant_share < 1
    assert result.throughput_ratio.keys() == set(WAYS) - {"dependency_cached"}
    assert result.slo.ttft_ms_bound == 5 * result.slo.ttft_ms > 0
    assert result.slo.rates.keys() == set(COMPARED)
    assert result.slo.rates["vllm_prefix"][0].rate == pytest.approx(0.5 * 1000 / result.slo.ttft_ms)
    for way, (tried,) in result.slo.rates.items():
        assert result.throughput_at_slo.get(way) == (tried.rate if tried.sustained else None)
    assert result.no_slo == ""
    quality = {one.way: one for one in result.quality}
    assert quality["self again"].first_token_agreement == 1
    assert quality["self again"].kl < 1e-5 < quality["depth"].kl
    assert quality["depth"].kl == pytest.approx(quality["depth, reused"].kl, abs=1e-4)
    # Those that are timed, and two more.
    assert {(one.set, one.tokens, one.questions) for one in result.quality} == {("made up", 200, 6)}
