"""The replay benchmark against servers with known speeds, in virtual time. No engine runs."""

import asyncio
import math
from contextlib import asynccontextmanager

import msgspec
import pytest
from virtual_time import run_in_virtual_time

from examine.measuring.engines import Generation
from examine.measuring.kv_paths import random_segment
from protocol.errors import ConfigError
from protocol.generation import PrefillResult
from protocol.plans import DocumentOrder, Reuse
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier
from ragtree_lab.measuring.baselines import Steps
from ragtree_lab.measuring.systems import FIRST_TOKEN, System
from ragtree_lab.replay.benchmark import ReplayBenchmark, ReplaySettings
from ragtree_lab.workloads.prompt_streams import poisson

SETTINGS = ReplaySettings(warm_up=8, unloaded=6, at_once=20, requests=200, seconds=300, answer_tokens=4)
DECODE_S = 0.1
CACHE_TOKENS, HOST_TOKENS = 300, 500


class NumberedStream:
    """Prompts with a document of 80 tokens each; every second one repeats the document before it."""

    document_tokens = 4000

    def __init__(self, length: int = 100_000) -> None:
        self._number = 0
        self._length = length

    @property
    def left(self):
        return self._length - self._number

    def take(self, count):
        if self._number + count > self._length:
            raise ConfigError("the stream has ended", "stream")
        first, self._number = self._number, self._number + count
        return [self._prompt(number) for number in range(first, first + count)]

    def arrivals(self, rate, count):
        return poisson(self.take(count), rate, 0)

    def _prompt(self, number):
        question = random_segment(f"question {number}", 20, SegmentKind.QUESTION)
        return Prompt((random_segment(f"document {number // 2}", 80), question))


class Servers:
    """Systems that prefill one prompt after another, each in the system's own time, and decode any number at once."""

    def __init__(self, prefill_s: dict[tuple[str, Steps], float], ours_s: float = 0.5, disk_tokens: int = 0) -> None:
        self._prefill_s = prefill_s
        self._disk_tokens = disk_tokens
        self._ours_s = ours_s
        self.asked: dict[str, list[tuple[str, int]]] = {}
        self.ram_tokens: dict[str, int] = {}
        self.reuse: dict[str, Reuse] = {}
        self.log: list[str] = []

    @asynccontextmanager
    async def ours(self, order, disk_share=1.0, reuse=Reuse.EXACT):
        self.order = order
        composes = ("ragtree-exact", Steps.OURS) in self._prefill_s
        name = "ragtree-exact" if composes and reuse is Reuse.EXACT else "ragtree"
        self.reuse[name] = reuse
        prefill_s = self._ours_s if name == "ragtree" else self._prefill_s[name, Steps.OURS]
        disk = int(self._disk_tokens * disk_share)
        memory = {Tier.GPU: 150, Tier.HOST: HOST_TOKENS, Tier.DISK: disk}
        yield self._server(name, prefill_s, 80, CACHE_TOKENS, memory)

    @asynccontextmanager
    async def running(self, name, steps, ram_tokens):
        self.ram_tokens[name] = ram_tokens
        yield self._server(f"{name} {steps}", self._prefill_s[name, steps], 0)

    def _server(self, name, prefill_s, cached, cache_tokens=0, memory=None):
        turn = asyncio.Lock()
        self.asked[name] = []
        loaded = {Tier.HOST: cached} if cached else {}

        async def answer(prompt, sampling=FIRST_TOKEN):
            self.asked[name].append((prompt.segments[-1].key, sampling.max_tokens))
            self.log.append(name)
            sent = asyncio.get_running_loop().time()
            async with turn:
                await asyncio.sleep(prefill_s)
            ttft_s = asyncio.get_running_loop().time() - sent
            await asyncio.sleep(DECODE_S)
            return Generation(ttft_s * 1000, PrefillResult(100, cached, 1.0, loaded=loaded), "", ())

        async def settle():
            self.log.append(f"{name} settled")

        return System(answer, settle, cache_tokens, memory or {})


BOTH = {("vllm", Steps.DEFAULT): 1.0, ("vllm", Steps.OURS): 1.25}


def replayed(servers, against=("vllm",), stream=None, settings=SETTINGS):
    benchmark = ReplayBenchmark(servers, against, stream or NumberedStream(), settings, lambda *_: None)
    run_in_virtual_time(benchmark.run())
    return benchmark.result(complete=True)


@pytest.fixture(scope="module")
def twice_as_fast():
    servers = Servers(BOTH)
    return servers, replayed(servers)


def test_unloaded_ttft_is_the_prefill_and_compared_with_the_better_setting(twice_as_fast):
    _, result = twice_as_fast
    assert result.systems["ragtree"].unloaded.mean_ttft_ms == pytest.approx(500)
    assert result.systems["ragtree"].unloaded.mean_answer_ms == pytest.approx(600)
    assert {trial.steps: trial.unloaded.mean_ttft_ms for trial in result.trials} == {
        Steps.DEFAULT: pytest.approx(1000),
        Steps.OURS: pytest.approx(1250),
    }
    assert result.ttft_ratio_unloaded == {"vllm": pytest.approx(2.0)}


def test_each_system_is_loaded_up_to_the_highest_rate_that_it_sustains(twice_as_fast):
    _, result = twice_as_fast
    assert result.systems["vllm"].steps is Steps.DEFAULT
    for name, prefills_per_s in (("vllm", 1.0), ("ragtree", 2.0)):
        system = result.systems[name]
        assert 0.75 * prefills_per_s < system.sustained_per_s < prefills_per_s
        assert system.loaded[-1].rate > system.sustained_per_s
    assert result.throughput_ratio["vllm"] == pytest.approx(2.0, rel=0.16)


def test_ttft_is_compared_at_the_highest_rate_that_both_sustain(twice_as_fast):
    _, result = twice_as_fast
    rate = result.systems["vllm"].sustained_per_s
    theirs, ours = (
        next(row.mean_ttft_ms for row in result.systems[name].loaded if row.rate == rate)
        for name in ("vllm", "ragtree")
    )
    assert result.ttft_ratio["vllm"] == pytest.approx(theirs / ours)
    assert result.ttft_ratio_by_rate["vllm"][f"{rate:g}"] == pytest.approx(theirs / ours)
    # A queue is longer behind slower prefills.
    assert result.ttft_ratio["vllm"] > 2.5


def test_our_system_arranges_documents_in_the_asked_order():
    servers = Servers(BOTH, disk_tokens=100_000)
    settings = msgspec.structs.replace(SETTINGS, order=DocumentOrder.CACHED_FIRST)
    replayed(servers, settings=settings)
    assert servers.order is DocumentOrder.CACHED_FIRST


def test_rates_last_long_enough(twice_as_fast):
    _, result = twice_as_fast
    for system in result.systems.values():
        for row in system.loaded:
            assert row.offered == max(200, -(-300 * row.rate // 1))
            assert row.requests == row.offered or row.rate > (system.sustained_per_s or 0)


def test_every_question_is_asked_once_and_answers_have_a_fixed_length(twice_as_fast):
    servers, _ = twice_as_fast
    for name, asked in servers.asked.items():
        assert len(set(asked)) == len(asked), name
        warm_up = {"ragtree": SETTINGS.warm_up}.get(name, 1)
        assert [tokens for _, tokens in asked] == [1] * warm_up + [4] * (len(asked) - warm_up)


def test_the_warm_up_ends_when_its_documents_fill_our_tiers():
    servers = Servers(BOTH)
    result = replayed(servers, settings=msgspec.structs.replace(SETTINGS, warm_up=1000))
    warming = [tokens for _, tokens in servers.asked["ragtree"] if tokens == 1]
    documents = math.ceil(sum(result.memory_tokens.values()) / 80)
    # Two prompts share a document, and the first one of the last document fills the tiers.
    assert result.warm_up_prompts == len(warming) == 2 * documents - 1


def test_both_settings_get_the_same_questions_and_only_the_better_goes_on(twice_as_fast):
    servers, _ = twice_as_fast
    better, worse = servers.asked["vllm default"], servers.asked["vllm ours"]
    assert len(worse) == 1 + SETTINGS.unloaded + SETTINGS.at_once
    assert better[: len(worse)] == worse
    assert len(better) > len(worse)


def test_systems_take_turns_question_by_question(twice_as_fast):
    servers, _ = twice_as_fast
    warming = 2 * (SETTINGS.warm_up + 1)
    turns = [name for name in servers.log if not name.endswith("settled")][SETTINGS.warm_up + 2 :]
    assert warming
    assert turns[:6] == ["ragtree", "vllm default", "vllm ours", "vllm default", "vllm ours", "ragtree"]


def test_new_paths_and_tokens_by_tier_are_counted(twice_as_fast):
    _, result = twice_as_fast
    assert result.new_path_share == pytest.approx(0.5, abs=0.01)
    assert result.token_hit_rate == {"gpu": 0, "host": pytest.approx(0.8), "disk": 0, "composed": 0}
    assert result.warm_up_prompts == SETTINGS.warm_up
    assert (result.ram_tokens, result.prompt_tokens) == (CACHE_TOKENS + HOST_TOKENS, 100)


def test_a_baseline_with_equal_memory_gets_as_much_as_our_tiers_in_memory():
    servers = Servers({("vllm-prefix-equal", steps): 1.0 for steps in Steps})
    replayed(servers, ["vllm-prefix-equal"])
    assert servers.ram_tokens == {"vllm-prefix-equal": CACHE_TOKENS + HOST_TOKENS}


def test_composing_runs_beside_exact_reuse():
    servers = Servers({**BOTH, ("ragtree-exact", Steps.OURS): 0.75})
    result = replayed(servers, settings=msgspec.structs.replace(SETTINGS, reuse=Reuse.COMPOSED))
    assert servers.reuse == {"ragtree": Reuse.COMPOSED, "ragtree-exact": Reuse.EXACT}
    assert result.ttft_ratio_unloaded == {"vllm": pytest.approx(2.0), "ragtree-exact": pytest.approx(1.5)}
    assert result.throughput_ratio["ragtree-exact"] == pytest.approx(1.5, rel=0.15)


def test_a_slower_stack_is_reported_as_slower():
    result = replayed(Servers(BOTH, ours_s=2.0))
    assert result.ttft_ratio_unloaded["vllm"] == pytest.approx(0.5)
    assert result.throughput_ratio["vllm"] == pytest.approx(0.5, rel=0.16)
    rates = {float(rate): ratio for rate, ratio in result.ttft_ratio_by_rate["vllm"].items()}
    assert all(rate <= result.systems["ragtree"].sustained_per_s for rate in rates)


def test_documents_that_do_not_outgrow_all_tiers_are_refused():
    stream = NumberedStream()
    stream.document_tokens = 2 * (150 + HOST_TOKENS) - 1
    with pytest.raises(ConfigError, match="1299 tokens of KV, less than 2 times the 650") as refused:
        replayed(Servers(BOTH), stream=stream)
    assert refused.value.param == "stream"


def test_the_disk_is_smaller_if_the_documents_would_not_outgrow_it():
    assert replayed(Servers(BOTH, disk_tokens=1000)).memory_tokens[Tier.DISK] == 1000
    kept = replayed(Servers(BOTH, disk_tokens=100_000)).memory_tokens
    assert kept[Tier.HOST] == HOST_TOKENS
    assert 2.0 < NumberedStream.document_tokens / sum(kept.values()) < 2.2


def test_rates_are_shorter_if_the_stream_has_too_few_prompts():
    # 34 prompts come before the first rate, and 12 rates should get the rest.
    result = replayed(Servers(BOTH), stream=NumberedStream(34 + 12 * 210))
    offered = {row.offered for system in result.systems.values() for row in system.loaded}
    assert offered <= set(range(200, 211))
    assert max(offered) == 210


@pytest.mark.parametrize(
    ("against", "why"),
    [
        (["vllm", "sglang"], "unknown baseline sglang"),
        (["ragtree"], "unknown baseline ragtree"),
        (["vllm", "vllm"], "repeated"),
        (["vllm", "vllm-offload"], "vllm-offload: .* GPU"),
        (["vllm", "vllm-lmcache"], "vllm-lmcache needs the package lmcache"),
    ],
)
def test_invalid_baselines_are_refused_before_the_run(against, why, monkeypatch):
    monkeypatch.setattr("ragtree_lab.measuring.baselines.has_gpu", lambda: False)
    monkeypatch.setattr("ragtree_lab.measuring.baselines.has_lmcache", lambda: False)
    with pytest.raises(ConfigError, match=why):
        ReplayBenchmark(Servers({}), against, NumberedStream(), SETTINGS, lambda *_: None)


def test_lmcache_is_a_baseline_without_a_gpu(monkeypatch):
    monkeypatch.setattr("ragtree_lab.measuring.baselines.has_gpu", lambda: False)
    monkeypatch.setattr("ragtree_lab.measuring.baselines.has_lmcache", lambda: True)
    ReplayBenchmark(Servers({}), ["vllm-lmcache"], NumberedStream(), SETTINGS, lambda *_: None)


@pytest.mark.parametrize(("length", "rates"), [(40, 0), (300, 1)])
def test_an_interrupted_run_keeps_what_it_has_measured(length, rates):
    benchmark = ReplayBenchmark(Servers(BOTH), ["vllm"], NumberedStream(length), SETTINGS, lambda *_: None)
    assert not benchmark.has_results
    with pytest.raises(ConfigError, match="stream has ended"):
        run_in_virtual_time(benchmark.run())
    assert benchmark.has_results
    result = benchmark.result(complete=False)
    assert not result.complete
    assert result.ttft_ratio_unloaded == {"vllm": pytest.approx(2.0)}
    assert len(result.systems["vllm"].loaded) == rates
    assert result.throughput_ratio == {}
