"""The ranked cache policy keeps the contract of vLLM's own policies, and follows its ranking.

Importing vLLM takes seconds, so a fixture does it, and not the collection of the tests.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from random import Random
from types import ModuleType

import pytest
from platformdirs import user_cache_path

from generator.engines.vllm_arguments import prepare_environment
from generator.models import ModelStore
from generator.settings import GeneratorSettings

pytestmark = pytest.mark.vllm

PGDSF = {"eviction_policy": "PgdsfCachePolicy", "cache_policy_module_path": "ragtree_vllm.plugin"}


@pytest.fixture(scope="module")
def traffic() -> ModuleType:
    prepare_environment(GeneratorSettings())
    import offloading_traffic

    return offloading_traffic


@pytest.fixture(params=["lru", "arc", "ranked"])
def policy(request, traffic):
    return traffic.POLICIES[request.param](8)


@pytest.fixture
def ranked(traffic):
    return traffic.POLICIES["ranked"](8)


def evicted(policy, n, protected=()) -> list[bytes] | None:
    victims = policy.evict(n, set(protected))
    return None if victims is None else [key for key, _ in victims]


def _prompts_that_branch(traffic) -> list[list[bytes]]:
    random = Random(3)
    return [traffic.prompt(*(random.randrange(3) for _ in range(random.randrange(1, 8)))) for _ in range(400)]


class TestEveryPolicy:
    def test_an_inserted_chunk_is_cached_until_it_is_removed(self, policy, traffic):
        first, second = traffic.prompt(1, 2)
        records = traffic.stored(policy, [first, second])
        assert [policy.get(first), policy.get(second)] == records
        policy.remove(second)
        assert [policy.get(first), policy.get(second)] == [records[0], None]

    def test_evict_returns_as_many_chunks_as_requested(self, policy, traffic):
        keys = [traffic.prompt(number)[0] for number in range(4)]
        records = {key: traffic.stored(policy, [key])[0] for key in keys}
        victims = policy.evict(3, set())
        assert len(victims) == 3
        assert all(records[key] is record for key, record in victims)
        assert [policy.get(key) for key, _ in victims] == [None] * 3
        assert evicted(policy, 0) == []
        assert len(evicted(policy, 1)) == 1

    def test_evicting_more_than_possible_evicts_nothing(self, policy, traffic):
        keys = traffic.prompt(1, 2, 3)
        traffic.stored(policy, keys)
        assert evicted(policy, 4) is None
        assert all(policy.get(key) is not None for key in keys)
        assert set(evicted(policy, 3)) == set(keys)

    def test_protected_chunks_stay(self, policy, traffic):
        first, second = (traffic.prompt(number)[0] for number in range(2))
        for key in (first, second):
            traffic.stored(policy, [key])
        assert evicted(policy, 2, [first]) is None
        assert evicted(policy, 1, [first]) == [second]
        assert evicted(policy, 1) == [first]

    def test_a_chunk_in_use_stays_until_its_last_load_ends(self, policy, traffic):
        (key,) = traffic.prompt(1)
        (record,) = traffic.stored(policy, [key])
        policy.mark_non_evictable(key)
        record.ref_cnt = 2
        assert evicted(policy, 1) is None
        record.ref_cnt = 1
        assert evicted(policy, 1) is None
        record.ref_cnt = 0
        policy.mark_evictable(key)
        assert evicted(policy, 1) == [key]

    def test_a_chunk_that_is_not_stored_yet_stays(self, policy, traffic):
        (key,) = traffic.prompt(1)
        policy.on_store_miss([key], traffic.request([key]))
        policy.insert(key, traffic.ChunkStatus(0))
        assert evicted(policy, 1) is None

    def test_a_prompt_is_evicted_from_its_end(self, policy, traffic):
        keys = traffic.prompt(1, 2, 3, 4)
        traffic.stored(policy, keys)
        assert [evicted(policy, 1)[0] for _ in keys] == keys[::-1]

    def test_clear_removes_all_chunks_even_in_use(self, policy, traffic):
        keys = traffic.prompt(1, 2)
        traffic.stored(policy, keys)[0].ref_cnt = 1
        policy.clear()
        assert [policy.get(key) for key in keys] == [None, None]
        assert evicted(policy, 1) is None
        traffic.stored(policy, keys)
        assert evicted(policy, 2) == keys[::-1]

    def test_the_cache_fills_and_never_overflows_under_vllms_manager(self, request, policy, traffic):
        manager = traffic.manager(request.node.callspec.params["policy"], 24)
        prompts = _prompts_that_branch(traffic)
        everything = {key for keys in prompts for key in keys}
        found = [traffic.serve(manager, keys) for keys in prompts]
        assert sum(manager._policy.get(key) is not None for key in everything) == 24
        assert any(found)


class TestRanking:
    def test_the_lowest_priority_is_evicted_first_then_the_least_recently_used(self, ranked, traffic):
        keys = [traffic.prompt(number)[0] for number in range(4)]
        for key in keys:
            traffic.stored(ranked, [key])
        for key in (keys[0], keys[2], keys[0]):
            ranked.touch([key], traffic.request([key]))
        assert evicted(ranked, 4) == [keys[1], keys[3], keys[2], keys[0]]
        assert ranked.ranking.gone == [(keys[1], 1), (keys[3], 1), (keys[2], 2), (keys[0], 3)]

    def test_a_use_during_a_load_counts(self, ranked, traffic):
        used, unused = (traffic.prompt(number)[0] for number in range(2))
        (record,) = traffic.stored(ranked, [used])
        traffic.stored(ranked, [unused])
        record.ref_cnt = 1
        ranked.touch([used], traffic.request([used]))
        record.ref_cnt = 0
        ranked.mark_evictable(used)
        assert evicted(ranked, 2) == [unused, used]

    def test_a_prompt_of_a_running_request_is_evicted_from_its_end(self, ranked, traffic):
        keys = traffic.prompt(1, 2, 3)
        ranked.on_store_miss(keys, traffic.request(keys))
        for key in keys:
            ranked.insert(key, record := traffic.ChunkStatus(0))
            record.ref_cnt = 0
            ranked.mark_evictable(key)
        assert [evicted(ranked, 1)[0] for _ in keys] == keys[::-1]

    def test_a_use_of_a_chunk_that_is_not_stored_yet_does_not_count(self, ranked, traffic):
        (key,) = traffic.prompt(1)
        context = traffic.request([key])
        ranked.on_store_miss([key], context)
        ranked.insert(key, traffic.ChunkStatus(0))
        ranked.touch([key], context)
        assert ranked.ranking.uses == {key: 1}

    def test_a_pass_is_the_chunks_missed_at_once_and_the_tokens_in_front(self, ranked, traffic):
        keys = traffic.prompt(1, 2, 3, 4, 5)
        context = traffic.request(keys)
        ranked.on_store_miss(keys[:3], context)
        ranked.on_store_miss(keys[3:], context)
        assert set(ranked.ranking.passes[:3]) == {(0, 3 * traffic.CHUNK_TOKENS)}
        assert set(ranked.ranking.passes[3:]) == {(3 * traffic.CHUNK_TOKENS, 2 * traffic.CHUNK_TOKENS)}

    def test_without_positions_chunks_count_as_at_the_head(self, ranked, traffic):
        keys = traffic.prompt(1, 2)
        ranked.on_store_miss(keys, traffic.ReqContext(req_id="r"))
        assert ranked.ranking.passes == [(0, 2)] * 2

    def test_a_cached_successor_protects_a_chunk_of_lower_priority(self, ranked, traffic):
        head, tail = traffic.prompt(1, 2)
        traffic.stored(ranked, [head, tail])
        for _ in range(5):
            ranked.touch([tail], traffic.request([head, tail]))
        other = traffic.prompt(9)[0]
        traffic.stored(ranked, [other])
        ranked.touch([other], traffic.request([other]))
        assert evicted(ranked, 2, [tail]) is None
        assert evicted(ranked, 3) == [other, tail, head]

    def test_only_neighbours_are_linked(self, ranked, traffic):
        keys = traffic.prompt(1, 2, 3)
        gap = [keys[0], keys[2]]
        context = traffic.request(keys)
        traffic.stored(ranked, keys[:1])
        ranked.on_store_miss([keys[2]], context)
        ranked.insert(keys[2], record := traffic.ChunkStatus(9))
        record.ref_cnt = 0
        ranked.mark_evictable(keys[2])
        ranked.on_request_finished([gap], {keys[2]}, {keys[0]}, context)
        ranked.touch([keys[2]] * 3, context)
        assert evicted(ranked, 1) == [keys[0]]

    def test_a_parent_that_could_not_be_stored_protects_nothing(self, ranked, traffic):
        head, tail = traffic.prompt(1, 2)
        traffic.stored(ranked, [head, tail])
        ranked.remove(head)
        traffic.stored(ranked, [head])
        assert evicted(ranked, 2) == [tail, head]
        assert evicted(ranked, 1) is None

    def test_a_failed_eviction_does_not_change_the_order(self, ranked, traffic):
        left, right = traffic.prompt(1, 2, 3), traffic.prompt(1, 8)
        traffic.stored(ranked, left)
        traffic.stored(ranked, right[1:])
        (pinned,) = traffic.stored(ranked, traffic.prompt(7))
        pinned.ref_cnt = 1
        assert evicted(ranked, 5) is None
        assert ranked.ranking.gone == []
        assert evicted(ranked, 4) == [left[2], left[1], left[0], right[1]]

    def test_offered_chunks_that_were_not_stored_are_forgotten_at_the_end_of_the_request(self, ranked, traffic):
        keys = traffic.prompt(1, 2)
        context = traffic.request(keys)
        ranked.on_store_miss(keys, context)
        assert set(ranked.ranking.uses) == set(keys)
        ranked.on_request_finished([keys], set(), set(), context)
        assert not ranked.ranking.uses

    def test_chunks_may_be_stored_at_the_second_attempt(self, traffic):
        """vLLM reports a miss once a request, however often it tries to store."""
        manager = traffic.manager("ranked", 2)
        (busy,) = traffic.prompt(0)
        traffic.serve(manager, [busy])
        reader = traffic.request([busy])
        manager.prepare_load([busy], reader)
        keys = traffic.prompt(1, 2)
        context = traffic.request(keys)
        assert manager.prepare_store(keys, context) is None
        manager.complete_load([busy], reader)
        assert manager.prepare_store(keys, context).keys_to_store == keys
        manager.complete_store(keys, context)
        manager.on_request_finished(context)
        assert traffic.serve(manager, keys) == 2

    def test_no_chunk_outlives_its_known_parent(self, traffic):
        manager = traffic.manager("ranked", 24)
        chunks = manager._policy._chunks
        linked = 0
        for keys in _prompts_that_branch(traffic):
            traffic.serve(manager, keys)
            behind = [chunk for chunk in chunks.values() if chunk.parent is not None]
            assert all(chunks.get(chunk.parent.key) is chunk.parent for chunk in behind)
            assert sum(chunk.children for chunk in chunks.values()) == len(behind)
            linked += len(behind)
        assert linked

    def test_the_heap_grows_with_chunks_and_not_with_uses(self, ranked, traffic):
        keys = [traffic.prompt(number)[0] for number in range(8)]
        for key in keys:
            traffic.stored(ranked, [key])
        for _ in range(200):
            ranked.touch(keys, traffic.request(keys))
        assert len(ranked._leaves) < 100
        assert evicted(ranked, 8) == keys[::-1]


def test_vllm_loads_pgdsf_by_name_without_ray(traffic):
    before = {name for name in sys.modules if name.partition(".")[0] == "ray"}
    manager = traffic.manager(PGDSF["eviction_policy"], 4, PGDSF["cache_policy_module_path"])
    assert type(manager._policy).__name__ == "PgdsfCachePolicy"
    assert {name for name in sys.modules if name.partition(".")[0] == "ray"} == before


def test_pgdsf_values_a_token_at_a_prompts_end_higher_than_at_its_head(traffic):
    manager = traffic.manager(PGDSF["eviction_policy"], 40, PGDSF["cache_policy_module_path"])
    deep = traffic.prompt(*range(40))
    shallow = deep[:20]
    traffic.serve(manager, shallow)
    traffic.serve(manager, deep)
    chunks = manager._policy._chunks
    # The head was requested twice and the rest once, but a token of the rest costs more.
    assert chunks[deep[20]].priority < chunks[deep[0]].priority < 2 * chunks[deep[20]].priority


def _rag_prompts(traffic, drift: bool) -> list[list[bytes]]:
    """Prompts of an instruction, two of 300 documents by Zipf's law with eight chunks each, and a unique question.

    With ``drift``, the most popular document changes every eight requests.
    """
    random = Random(1)
    weights = list(accumulate(1 / rank for rank in range(1, 301)))
    prompts = []
    for number in range(2000):
        first = number // 8 if drift else 0
        picked = random.choices(range(first, first + 300), cum_weights=weights, k=2)
        documents = ((each, chunk) for each in picked for chunk in range(8))
        prompts.append(traffic.prompt("instruction", *documents, f"question {number}"))
    return prompts


@pytest.mark.parametrize(
    ("drift", "chunks", "least"),
    [
        (False, 200, 1.2),
        (False, 800, 1.1),
        (False, 3000, 1.03),
        (True, 200, 1.0),
        (True, 800, 0.97),
        (True, 3000, 0.97),
    ],
)
def test_ratio_of_chunks_that_pgdsf_finds_over_lru(traffic, drift, chunks, least):
    prompts = _rag_prompts(traffic, drift)

    def found(policy: str, module: str | None = None) -> int:
        manager = traffic.manager(policy, chunks, module)
        return sum(traffic.serve(manager, prompt) for prompt in prompts)

    assert found(*PGDSF.values()) >= least * found("lru")


@pytest.mark.prove("contrib/vllm/")
def test_a_real_engine_keeps_a_popular_prompt(traffic):
    model = ModelStore(user_cache_path("ragtree")).resolve("smollm2-135m-instruct")
    import host_offloading

    popular, *others = [[100 + position * step % 900 for position in range(300)] for step in (1, 7, 11, 13, 17)]
    prompts = [popular] * 3 + others + [popular]
    extra_config = PGDSF | {
        "spec_name": "CopyingSpec",
        "spec_module_path": "host_offloading",
        "cpu_bytes_to_use": 24 * host_offloading.CHUNK_BYTES,
    }
    # In a process of its own, because vLLM allows one connector a process. The engine's cache holds two prompts, the
    # host's two and a half. By recency, the popular prompt would be evicted from both.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        answers = pool.submit(host_offloading.ask, model, 20, extra_config, prompts).result()
    assert [cached for cached, _ in answers] == [0, 288, 288, 0, 0, 0, 0, 288]
    assert answers[-1][1] == answers[0][1]
