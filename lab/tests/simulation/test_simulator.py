"""The simulator's times match those computed by hand. No request is lost. All policies get the same arrivals."""

from collections.abc import Iterable
from itertools import permutations

import msgspec
import pytest
from controller_integrity import check_integrity

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.errors import ConfigError, UnknownPolicy
from protocol.plans import DocumentOrder
from ragtree_lab.simulation.comparison import PoliciesResult, PolicyBenchmark
from ragtree_lab.simulation.policies import simulated_policies
from ragtree_lab.simulation.policies.belady import Belady
from ragtree_lab.simulation.simulator import SimulatedService, SimulationResult, Simulator
from ragtree_lab.simulation.time_histogram import TimeHistogram
from ragtree_lab.workloads.synthetic import SyntheticSettings, SyntheticWorkload
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload

# A computed token takes 1 s, a cached one 0.1 s. Loading one takes 0.5 s from host and 0.75 s from disk.
DEVICE = DeviceProfile(
    name="toy",
    source="made up",
    host_bytes_per_s=2.0,
    disk_bytes_per_s=4.0,
    kv_bytes_per_token=1,
    grid=PrefillGrid((0, 1000), (1, 1001), ((1.0, 1001.0), (101.0, 1101.0))),
)
ROOM = Capacities(1000)
TOKENS = 10


class Requests(Workload):
    """A workload of these requests."""

    name = "by hand"

    def __init__(self, *requests: TraceRequest):
        self._requests = requests

    @property
    def length(self):
        return len(self._requests)

    def requests(self):
        return iter(self._requests)


class Unread(Requests):
    """A workload that must not be read."""

    def requests(self):
        raise AssertionError("something ran")


class Times(TimeHistogram):
    """A histogram that also records each time, in the order of the ends of prefills."""

    def __init__(self):
        super().__init__()
        self.seen: list[float] = []

    def add(self, seconds):
        super().add(seconds)
        self.seen.append(seconds)


def ask(arrival_s: float, documents: Iterable[str], question: int = 2, **fields) -> TraceRequest:
    """Create a request for documents of ``TOKENS`` tokens each."""
    return TraceRequest(arrival_s, tuple(TraceDocument(id_, TOKENS) for id_ in documents), question, **fields)


class Run:
    """A simulated workload: its ``result``, each ``ttft`` in the order of first tokens, and the simulator's parts."""

    def __init__(self, workload: Workload, policy: str = "LRU", room: Capacities = ROOM, **service):
        bounds = SimulatedService(**service)
        lookahead = Lookahead()
        self.tree = KnowledgeTree(
            create_policy(policy, lookahead),
            KvStorage(room),
            [f"instance-{number}" for number in range(bounds.instances)],
            TreeCosts(DEVICE.prefill_seconds),
        )
        self.scheduler = Scheduler(
            self.tree, lookahead, bounds.max_running, bounds.max_queued, window=bounds.reorder_window
        )
        self.simulator = Simulator(self.scheduler, DEVICE, bounds)
        times = self.simulator._ttft = Times()
        self.ttft = times.seen
        self.arrivals: list[int] = []
        self.result = self.simulator.run(workload, self.arrivals.append)


def run(*requests: TraceRequest, **how) -> Run:
    return Run(Requests(*requests), **how)


def simulate(workload: Workload, policy: str, room: Capacities = ROOM, **service) -> SimulationResult:
    return PolicyBenchmark(DEVICE, room, SimulatedService(**service)).simulate(workload, policy, lambda *_: None)


def busy(requests: int = 300, **fields) -> Workload:
    """Create more work than can run at once, so that requests queue, evict and overtake."""
    made = SyntheticSettings(requests=requests, documents=60, top_k=3, rate=0.01, mean_tokens=20, question_tokens=4)
    return SyntheticWorkload("zipf", msgspec.structs.replace(made, **fields), seed=1)


# Composed reuse


def test_documents_are_composed_wherever_they_stand():
    # The third request composes b, which has stood behind a: 2 of its 10 tokens are computed again.
    long = [TraceRequest(at, tuple(TraceDocument(id_, 100) for id_ in ids), 2) for at, ids in ((0, "ab"), (900, "cb"))]
    exact, composed = (run(*long, recompute_share=share) for share in (None, 0.2))
    assert exact.result.token_hit_rate == 0.0
    assert composed.result.composed_tokens == 80
    assert composed.result.token_hit_rate == pytest.approx(80 / 400)
    assert composed.result.doc_hit_rate == pytest.approx(1 / 4)
    # First c is computed. Then 20 of b and the question are, behind 180 tokens that cost 0.1 s each.
    assert composed.ttft[1] == pytest.approx(100 + 22 + 18)


def test_documents_that_a_composed_prompt_lacked_are_computed_first_and_donate_later():
    requests = [
        TraceRequest(at, tuple(TraceDocument(id_, 100) for id_ in ids), 2)
        for at, ids in ((0, "ab"), (1000, "cbd"), (2000, "ed"))
    ]
    served = run(*requests, recompute_share=0.2)
    # The second request composes b, and the third one d.
    assert served.result.composed_tokens == 2 * 80
    # c and d are computed. Then 20 of b, 20 of d and the question are, behind 260 tokens.
    assert served.ttft[1] == pytest.approx(200 + 42 + 26)


# Times


def test_request_waits_for_the_previous_prefill():
    # Each computes 10 + 2 tokens. The second arrives at 1 s, starts when the first ends, at 12 s, and ends at 24 s.
    served = run(ask(0, "a"), ask(1, "b"), ask(30, "c"), policy="NONE")
    assert served.ttft == pytest.approx([12, 23, 12])
    assert served.result.mean_ttft_s == pytest.approx(47 / 3)
    assert served.result.p99_ttft_s == pytest.approx(23, rel=0.01)
    assert served.result.simulated_s == pytest.approx(42)


def test_gpu_hits_cost_only_their_attention():
    # The second request finds 10 tokens, at 0.1 s each, and computes 2.
    served = run(ask(0, "a"), ask(100, "a"))
    assert served.ttft == pytest.approx([12, 1 + 2])
    assert served.result.hit_tokens_by_tier == {"gpu": 10, "host": 0, "disk": 0}


def test_only_the_found_prefix_saves_time():
    # ab, then ac: a is found, c is not: 10 tokens at 0.1 s and 12 at 1 s. Then ba: no cached prefix matches.
    served = run(ask(0, "ab"), ask(100, "ac"), ask(200, "ba"))
    assert served.ttft == pytest.approx([22, 1 + 12, 22])
    assert (served.result.documents, served.result.doc_hit_rate) == (6, pytest.approx(1 / 6))


@pytest.mark.parametrize(
    ("room", "tier", "load_s"),
    [(Capacities(10, 10), "host", 5.0), (Capacities(10, 0, 10), "disk", 7.5), (Capacities(10, 10, 10), "host", 5.0)],
)
def test_documents_in_a_slower_tier_are_loaded_before_the_prefill(room, tier, load_s):
    # b evicts a from the GPU. Loading a takes its transfer time.
    served = run(ask(0, "a"), ask(100, "b"), ask(200, "a"), room=room)
    assert served.ttft == pytest.approx([12, 12, load_s + 1 + 2])
    assert served.result.hit_tokens_by_tier == {"gpu": 0, "host": 0, "disk": 0} | {tier: 10}


def test_load_delays_the_next_prefill():
    # a loads in 5 s and prefills in 3 s, from 200 to 208. c follows.
    served = run(ask(0, "a"), ask(100, "b"), ask(200, "a"), ask(200, "c"), room=Capacities(10, 20))
    assert served.ttft == pytest.approx([12, 12, 8, 8 + 12])


def test_last_token_is_computed_even_if_all_are_cached():
    served = run(ask(0, "a", question=0), ask(100, "a", question=0))
    assert served.ttft == pytest.approx([10, 0.9 + 1])
    assert served.result.hit_tokens_by_tier["gpu"] == 10


def test_request_finds_nothing_during_the_prefill_of_its_documents():
    served = run(ask(0, "a"), ask(1, "a"))
    assert served.ttft == pytest.approx([12, 23])
    assert served.result.doc_hit_rate == 0


def test_queued_request_finds_documents_computed_while_it_waited():
    served = run(ask(0, "a"), ask(1, "a"), max_running=1)
    assert served.ttft == pytest.approx([12, 11 + 3])


def test_answer_occupies_its_slot_until_its_last_token():
    # Prefilled at 12, answered at 22. The next one starts only then, although the engine is idle before.
    requests = [ask(0, "a", output_tokens=5), ask(1, "b", output_tokens=5)]
    served = run(*requests, max_running=1, decode_s=2.0)
    assert served.ttft == pytest.approx([12, 33])
    assert served.result.simulated_s == pytest.approx(44)
    assert run(*requests, max_running=2, decode_s=2.0).ttft == pytest.approx([12, 23])
    assert run(*requests, max_running=1, decode_s=0.0).ttft == pytest.approx([12, 23])


def test_prefilled_documents_are_reused_during_the_answer():
    served = run(ask(0, "a", output_tokens=50), ask(15, "a"), decode_s=2.0)
    assert served.ttft == pytest.approx([12, 3])


def test_at_most_max_running_requests_have_their_hits_counted():
    # Of three requests for a, two start before a is cached. The third starts when the first ends.
    requests = [ask(0, "a"), ask(0, "a"), ask(0, "a")]
    assert run(*requests, max_running=2).ttft == pytest.approx([12, 24, 24 + 3])
    assert run(*requests, max_running=3).ttft == pytest.approx([12, 24, 36])


def test_requests_outside_a_full_queue_wait_and_their_wait_counts():
    requests = [ask(0, document) for document in "abcd"]
    for max_queued in (0, 1, 9):
        served = run(*requests, policy="NONE", max_running=1, max_queued=max_queued)
        assert served.ttft == pytest.approx([12, 24, 36, 48])


def test_cached_requests_overtake_only_inside_the_queue():
    # The fourth request finds a cached, so it takes 3 s. In the queue it overtakes two; outside it is served last.
    requests = [ask(0, document) for document in "abca"]
    inside = run(*requests, max_running=1)
    assert inside.ttft == pytest.approx([12, 15, 27, 39])
    assert inside.result.largest_overtake == 1
    outside = run(*requests, max_running=1, max_queued=1)
    assert outside.ttft == pytest.approx([12, 24, 36, 39])
    assert outside.result.largest_overtake == 0


def test_reorder_window_of_0_serves_in_order_of_arrival():
    requests = [ask(0, document) for document in "abca"]
    assert run(*requests, max_running=1, reorder_window=0).ttft == pytest.approx([12, 24, 36, 39])


def test_instances_prefill_in_parallel():
    served = run(ask(0, "a"), ask(0, "b"), ask(0, "c"), policy="NONE", instances=2)
    assert served.ttft == pytest.approx([12, 12, 24])


def test_request_goes_to_the_instance_with_its_documents():
    served = run(ask(0, "a"), ask(0, "b"), ask(100, "a"), ask(200, "b"), ask(300, "b"), instances=2)
    assert served.ttft == pytest.approx([12, 12, 3, 3, 3])


def test_instances_share_host_memory_but_not_their_gpus():
    # Each GPU has room for one document. c and d evict a and b to host, where any instance finds them.
    room = Capacities(10, 100)
    requests = [ask(0, "a"), ask(0, "b"), ask(100, "c"), ask(100, "d"), ask(200, "a"), ask(200, "b")]
    served = run(*requests, room=room, instances=2)
    assert served.result.hit_tokens_by_tier == {"gpu": 0, "host": 20, "disk": 0}
    assert served.ttft == pytest.approx([12, 12, 12, 12, 8, 8])


# Counters


def test_every_request_is_served_and_reported():
    served = Run(busy(), "PGDSF", Capacities(200, 300), instances=2, max_running=2, max_queued=3, decode_s=0.1)
    assert len(served.ttft) == sum(served.arrivals) == served.result.requests == 300
    assert served.result.documents == 900
    assert min(served.ttft) > 0
    assert (served.scheduler.instances.running, served.scheduler.instances.queued, served.simulator._running) == (
        0,
        0,
        {},
    )
    assert not any(node.locks for node in served.tree.registry.nodes.values())
    check_integrity(served.scheduler)
    check_integrity(served.tree)


def test_hit_rates_are_shares_of_documents_and_tokens():
    long, short = TraceDocument("long", 30), TraceDocument("short", 10)
    served = run(TraceRequest(0, (long, short), 2), TraceRequest(100, (long,), 2), TraceRequest(200, (short,), 2))
    assert (served.result.documents, served.result.doc_hit_rate) == (4, 1 / 4)
    assert served.result.token_hit_rate == pytest.approx(30 / 80)


def test_evictions_are_counted_by_tier():
    # GPU and host have room for one document each: b moves a to host, c moves b to host and evicts a.
    served = run(ask(0, "a"), ask(100, "b"), ask(200, "c"), room=Capacities(10, 10))
    assert served.result.evictions_by_tier == {"gpu": 2, "host": 1, "disk": 0}
    assert served.result.evictions == 3


def test_workload_without_requests_has_rates_of_0():
    result = run().result
    assert (result.requests, result.doc_hit_rate, result.token_hit_rate, result.mean_ttft_s) == (0, 0, 0, 0)


def test_requests_without_documents_are_served():
    served = run(ask(0, ""), ask(0, "", system_tokens=10, system_id="s"))
    assert served.ttft == pytest.approx([2, 14])
    assert (served.result.requests, served.result.documents) == (2, 0)


def test_request_without_tokens_is_served():
    # The plain format allows it: {"t": 0, "docs": [], "question_tokens": 0}.
    assert run(ask(0, "", question=0)).result.requests == 1


def test_request_may_repeat_a_document():
    served = run(ask(0, "aab"), ask(100, "aab"), ask(200, "ab"))
    assert served.ttft == pytest.approx([32, 3 + 2, 1 + 12])
    assert served.result.doc_hit_rate == pytest.approx(4 / 8)
    check_integrity(served.tree)


@pytest.mark.parametrize("policy", simulated_policies())
@pytest.mark.parametrize("order", [DocumentOrder.RETRIEVAL, DocumentOrder.CANONICAL])
def test_every_policy_supports_repeated_documents(policy, order):
    workload = Requests(*[ask(number, documents) for number, documents in enumerate(["aab", "aba", "baa", "aaa"] * 5)])
    result = simulate(workload, policy, Capacities(30, 20), order=order)
    assert (result.requests, result.documents) == (20, 60)


def test_none_policy_has_no_hits():
    result = simulate(busy(), "NONE", Capacities(10_000, 10_000, 10_000))
    assert (result.doc_hit_rate, result.token_hit_rate, result.evictions) == (0, 0, 0)
    assert set(result.hit_tokens_by_tier.values()) == {0}
    assert result.documents == 900


# The system prompt


def test_system_prompt_is_cached_but_is_not_a_document():
    fields = {"system_tokens": 10, "system_id": "s"}
    served = run(ask(0, "a", **fields), ask(100, "b", **fields))
    # The second request finds the prompt's 10 tokens and computes 12.
    assert served.ttft == pytest.approx([22, 1 + 12])
    assert (served.result.documents, served.result.doc_hit_rate) == (2, 0)
    assert sum(served.result.hit_tokens_by_tier.values()) == 0


def test_system_prompt_is_pinned():
    # Documents of another prompt pass through a GPU of 40 tokens. The pinned prompt stays.
    fields = {"system_tokens": 10, "system_id": "s"}
    passing = [ask(100 * number, f"{number}") for number in range(1, 9)]
    served = run(ask(0, "a", **fields), *passing, ask(1000, "a", **fields), room=Capacities(40))
    assert served.ttft[-1] == pytest.approx(1 + 12)
    assert served.tree.tiers.gpu("instance-0").pinned_tokens == 10


def test_documents_after_different_system_prompts_are_different():
    served = run(
        ask(0, "a", system_tokens=10, system_id="s"),
        ask(100, "a", system_tokens=10, system_id="t"),
        ask(200, "a"),
        ask(300, "a", system_tokens=10, system_id="s"),
    )
    assert served.ttft == pytest.approx([22, 22, 12, 2 + 2])


# The order of documents


# Of six permutations in retrieval order, three start with a document already seen first, and no longer prefix matches.
@pytest.mark.parametrize("system", [{}, {"system_tokens": 10, "system_id": "s"}])
@pytest.mark.parametrize(
    ("order", "hits"), [(DocumentOrder.RETRIEVAL, 3), (DocumentOrder.CANONICAL, 15), (DocumentOrder.CACHED_FIRST, 15)]
)
def test_order_decides_the_hits_of_permuted_documents(order, hits, system):
    served = run(
        *[ask(100 * number, documents, **system) for number, documents in enumerate(permutations("abc"))], order=order
    )
    assert served.result.documents == 18
    assert served.result.doc_hit_rate == pytest.approx(hits / 18)


def test_cached_first_order_reuses_subsets_that_canonical_order_does_not():
    requests = [ask(0, "bc"), ask(100, "abc")]
    assert run(*requests, order=DocumentOrder.CANONICAL).result.doc_hit_rate == 0
    assert run(*requests, order=DocumentOrder.CACHED_FIRST).result.doc_hit_rate == pytest.approx(2 / 5)


# Repeatability


@pytest.mark.parametrize("policy", simulated_policies())
def test_equal_arrivals_give_equal_results(policy):
    room, service = Capacities(150, 200, 100), {"instances": 2, "max_running": 2, "decode_s": 0.1}
    first, second = (simulate(busy(200), policy, room, **service) for _ in range(2))
    assert first == second
    assert first.requests == 200


# Memory


WAITING = 4


class EverNew(Workload):
    """Requests for documents that never repeat, at more than the served rate. Calls ``look`` every 500 requests."""

    name = "ever new"

    def __init__(self, count, look):
        self._count = count
        self._look = look

    @property
    def length(self):
        return self._count

    def requests(self):
        for number in range(self._count):
            if not number % 500:
                self._look()
            yield ask(number / 10, [f"{number}"], system_tokens=10, system_id="s")


@pytest.mark.parametrize(
    ("policy", "room", "requests"), [("PGDSF", Capacities(400, 600), 5000), ("FORESIGHT", Capacities(1000), 20_000)]
)
def test_memory_depends_on_the_tree_and_queues_and_not_on_the_requests(policy, room, requests):
    looked = []

    def look() -> None:
        tree, simulator = served.tree, served.simulator
        nodes = sum(room) // TOKENS
        assert len(tree.registry.nodes) <= nodes
        assert len(tree.registry.by_content) <= nodes
        assert len(tree.grants.open) <= 4
        assert not tree.registry.detached
        assert len(tree.registry.roots) <= 1
        assert len(simulator._running) <= 4 + WAITING
        assert len(simulator._events) <= 4
        assert len(served.scheduler._lookahead._needed) <= 2 * WAITING
        # Steps of one percent from a microsecond to ten days.
        assert len(simulator._ttft._counts) <= 2800
        for cache in tree.tiers:
            # The order removes entries of evicted copies.
            assert len(getattr(cache._order, "_entries", ())) <= 64 + 2 * nodes
        if policy == "FORESIGHT":
            histories = tree.policy._histories
            assert len(histories) <= nodes + max(500, 2 * nodes) + 2
            assert len(histories._documents) <= len(histories)
            assert len(histories._ghosts) <= len(histories)
            assert len(tree.policy._waiting) <= 2 * len(histories) + 64
        looked.append(len(tree.registry.nodes))

    served = Run(Requests(), policy, room, max_queued=WAITING)
    served.simulator._ttft = TimeHistogram()
    result = served.simulator.run(EverNew(requests, look), lambda _: None)
    look()
    assert result.requests == requests
    assert len(looked) == requests // 500 + 1
    assert looked[-1] > 50


# All policies


def test_result_has_the_setup_and_figures_of_each_policy():
    heard = []
    service = SimulatedService(order=DocumentOrder.CANONICAL)
    result = PolicyBenchmark(DEVICE, Capacities(100, 200, 300), service).run(
        busy(50), ["PGDSF", "BELADY", "NONE"], lambda policy, count: heard.append((policy, count))
    )
    assert isinstance(result, PoliciesResult)
    assert (result.trace, result.device, result.order) == ("zipf", "toy", "canonical")
    assert (result.gpu_tokens, result.host_tokens, result.disk_tokens) == (100, 200, 300)
    assert list(result.policies) == ["PGDSF", "BELADY", "NONE"]
    assert heard == [(policy, 1) for policy in result.policies for _ in range(50)]
    for figures in result.policies.values():
        assert (figures.requests, figures.documents) == (50, 150)
        assert 0 <= figures.doc_hit_rate <= 1
        assert 0 <= figures.token_hit_rate <= 1
        assert 0 < figures.mean_ttft_s <= figures.p99_ttft_s * 1.01
        assert figures.evictions == sum(figures.evictions_by_tier.values())
        assert list(figures.hit_tokens_by_tier) == list(figures.evictions_by_tier) == ["gpu", "host", "disk"]
    assert result.policies["PGDSF"].token_hit_rate > result.policies["NONE"].token_hit_rate == 0


def test_result_round_trips_as_json():
    result = PolicyBenchmark(DEVICE, ROOM, SimulatedService()).run(busy(20), ["LRU"], lambda *_: None)
    assert msgspec.json.decode(msgspec.json.encode(result), type=PoliciesResult) == result


def test_every_shipped_policy_and_belady_can_be_simulated():
    assert simulated_policies() == [*policy_names(), "LFU", "HYBRID", "LACR", "LACR-NORMALISED", Belady.name]
    result = PolicyBenchmark(DEVICE, Capacities(100, 100), SimulatedService()).run(
        busy(40), simulated_policies(), lambda *_: None
    )
    assert list(result.policies) == simulated_policies()


def test_unknown_policy_is_refused_before_the_run():
    with pytest.raises(UnknownPolicy, match="'NOPE'"):
        PolicyBenchmark(DEVICE, ROOM, SimulatedService()).run(Unread(), ["LRU", "BELADY", "NOPE"], lambda *_: None)


def test_belady_refuses_the_cached_first_order():
    service = SimulatedService(order=DocumentOrder.CACHED_FIRST)
    with pytest.raises(ConfigError, match="cached-first"):
        PolicyBenchmark(DEVICE, ROOM, service).run(Unread(), ["BELADY"], lambda *_: None)


def test_order_that_a_policy_does_not_support_is_refused_before_the_run():
    service = SimulatedService(order=DocumentOrder.CACHED_FIRST)
    with pytest.raises(ConfigError, match="cached-first"):
        PolicyBenchmark(DEVICE, ROOM, service).run(Unread(), ["LRU", "BELADY"], lambda *_: None)


# Loads ahead of turns


def test_what_waits_is_loaded_while_another_request_is_prefilled():
    # a and b go to host memory when c and d come. The last request loads them, 10 s, before it computes 2 tokens.
    requests = [ask(0, "ab"), ask(100, "cd"), ask(200, "ef", question=30), ask(201, "ab")]
    room = Capacities(40, 100)
    without = run(*requests, room=room, max_running=1)
    ahead = run(*requests, room=room, max_running=1, load_ahead_s=1.0)
    assert ahead.ttft[:3] == without.ttft[:3]
    assert ahead.ttft[3] == pytest.approx(without.ttft[3] - 10)
    assert ahead.result.hit_tokens_by_tier == {"gpu": 20, "host": 0, "disk": 0}
    check_integrity(ahead.tree)


def test_no_request_is_lost_with_loads_ahead():
    result = simulate(busy(), "PGDSF", Capacities(100, 400), max_running=2, max_queued=5, load_ahead_s=0.0)
    assert result.requests == 300
    assert result.documents == simulate(busy(), "PGDSF", Capacities(100, 400), max_running=2, max_queued=5).documents
