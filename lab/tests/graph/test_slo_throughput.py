"""Throughput at the SLO of servers whose speed is known, in virtual time. No engine runs."""

import asyncio

import pytest
from virtual_time import run_in_virtual_time

from ragtree_lab.graph.attention.prompt_groups import PromptGroup
from ragtree_lab.graph.attention.results import Slo
from ragtree_lab.graph.attention.slo_throughput import COMPARED, Ladder, SloThroughput, sustained_rates

OURS, VLLM, PREFIX = COMPARED
DEFAULT = Ladder()


class Server:
    """Takes ``seconds`` for a prompt, and serves one at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[int] = []
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, prompt: int) -> None:
        self.asked.append(prompt)
        async with self._one_at_a_time:
            await asyncio.sleep(self.seconds)


class ManyServers(Server):
    """Serves all prompts at the same time."""

    async def ask(self, prompt: int) -> None:
        self.asked.append(prompt)
        await asyncio.sleep(self.seconds)


def three(ours: float, prefix: float = 1.0, vllm: float = 1.0) -> dict[str, Server]:
    return {OURS: Server(ours), PREFIX: Server(prefix), VLLM: Server(vllm)}


def measured(
    servers: dict[str, Server],
    prompts: int = 160,
    ladder: Ladder = DEFAULT,
    idle_s: dict[str, float] | None = None,
) -> Slo:
    idle_s = {way: server.seconds for way, server in servers.items()} | (idle_s or {})
    return run_in_virtual_time(
        SloThroughput(ladder, lambda *_: None).measure(
            {way: server.ask for way, server in servers.items()},
            {way: 1000 * seconds for way, seconds in idle_s.items()},
            PromptGroup("made up", 1000, (), (), ()),
            range(prompts),
        )
    )


def test_the_bound_is_five_times_the_time_of_an_idle_prefix_cache():
    slo = measured(three(ours=0.25, prefix=0.8, vllm=2.0))
    assert (slo.set, slo.tokens, slo.prompts) == ("made up", 1000, 20)
    assert (slo.ttft_ms, slo.ttft_ms_bound) == (800, 4000)


def test_a_server_sustains_most_of_what_it_can_serve_and_more_of_it_with_a_looser_bound():
    many = Ladder(most_prompts=400)
    rates = sustained_rates(measured(three(ours=0.25), 8 * 400, many))
    # With Poisson arrivals and equal service times, nine of ten prompts take at most 5 times the service up to about
    # 0.78 of the capacity, and at most 20 times up to about 0.94 of it.
    assert rates[PREFIX] == rates[VLLM] == pytest.approx(0.6 * 1.2)
    assert rates[OURS] == pytest.approx(4 * 0.6 * 1.2**2)


def test_rates_go_up_in_equal_steps_to_the_first_that_is_not_sustained():
    for tried in measured(three(ours=0.25, vllm=2.0)).rates.values():
        assert [one.rate / tried[0].rate for one in tried] == pytest.approx([1.2**step for step in range(len(tried))])
        assert [one.sustained for one in tried] == [True] * (len(tried) - 1) + [False]


def test_rates_go_down_if_the_first_is_not_sustained():
    servers = three(ours=0.25)
    slo = measured(servers, idle_s={OURS: 0.1})
    tried = slo.rates[OURS]
    assert [one.rate for one in tried] == pytest.approx([6 / 1.2**step for step in range(len(tried))])
    assert [one.sustained for one in tried] == [False] * (len(tried) - 1) + [True]
    assert sustained_rates(slo)[OURS] == tried[-1].rate < 4


def test_prompts_that_pile_up_are_not_sustained_though_all_come_in_time():
    last = measured(three(ours=0.01)).rates[OURS][-1]
    assert last.in_time == 1
    assert not last.sustained
    assert last.rate / 100 < 1.2


def test_a_server_without_a_queue_sustains_all_rates():
    servers = three(ours=0.25) | {OURS: ManyServers(0.25)}
    tried = measured(servers).rates[OURS]
    assert len(tried) == 8
    assert all(one.sustained for one in tried)
    assert [one.drain_s for one in tried] == pytest.approx([0.25] * 8)


def test_a_way_that_sustains_nothing_has_no_throughput():
    slo = measured(three(ours=0.25, vllm=6.0))
    assert [one.in_time for one in slo.rates[VLLM]] == [0] * 8
    assert sustained_rates(slo).keys() == {OURS, PREFIX}


def test_no_way_is_asked_a_prompt_twice_and_all_are_asked_the_same_ones():
    servers = three(ours=0.25) | {PREFIX: ManyServers(1.0)}
    slo = measured(servers)
    for way, server in servers.items():
        # In the order of arrival.
        assert server.asked == list(range(20 * len(slo.rates[way])))
    assert len(slo.rates[OURS]) < len(slo.rates[PREFIX]) == 8


@pytest.mark.parametrize(
    ("spare", "taken"), [(0, 0), (87, 0), (88, 88), (92, 88), (107, 103), (108, 108), (130, 128), (1000, 168)]
)
def test_rates_share_the_prompts_and_too_few_are_none(spare, taken):
    throughput = SloThroughput(DEFAULT, lambda *_: None)
    assert throughput.taken(spare) == throughput.taken(taken) == taken
    assert throughput.least_prompts == 88
