"""A controller plans reads on another machine, and learns from how they go."""

import msgspec
from controller_under_test import Clock, ask, key, report
from test_live_controller import TOKENS, Engine, Fleet, held

from cachectl.costs.device_profile import DeviceProfile
from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings
from protocol.kv import KvRead, LostCopy, Peers
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

HOST = Tier.HOST


class TwoMachines:
    """A controller over ``near`` and ``far``, which are on machines of their own. The second one holds ``h``."""

    def __init__(self, folder) -> None:
        self.clock = Clock()
        far = Engine(boot="boot-far", shared="far machine", peers=Peers(("far:1",), 1.0))
        far.reports = (held(HOST, "h"),)
        self.fleet = Fleet(far=far, near=Engine(boot="boot-near", peers=Peers(("near:1",), 1.0)))
        settings = ControllerSettings(policy="LRU", max_running=2, prepare_after_s=None)
        self.live = LiveController(settings, self.fleet, folder, self.clock, lambda: 0.0)
        self.asked = 0

    async def start(self) -> None:
        await self.live.start(lambda done, total: None)

    async def plan(self) -> PrefillPlan:
        """The plan of a query that ``far`` cannot run."""
        self.asked += 1
        request = msgspec.structs.replace(ask(f"query {self.asked}", "h"), avoid=("far",))
        return await self.live.controller.admit(request)

    async def complete(self, plan: PrefillPlan, *reads: KvRead, lost=()) -> None:
        """End a plan of which nothing is kept, so that the next one finds what it found."""
        done = msgspec.structs.replace(report(plan.query_id, computed=0, lost=lost), reads=reads)
        await self.live.controller.complete(done)

    async def reads(self) -> bool:
        """Whether a query's plan reads what the other machine holds. Its read goes well."""
        plan = await self.plan()
        (node,) = plan.nodes
        await self.complete(plan)
        return node.peer is not None

    def passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.live.controller.expire_leases()


FAILED = KvRead("far machine", 0, 1.0, failed=True)
READ = KvRead("far machine", TOKENS, 0.003)


async def two_machines(folder) -> TwoMachines:
    machines = TwoMachines(folder)
    await machines.start()
    return machines


async def test_a_plan_reads_on_the_machine_that_holds_a_document(tmp_path):
    machines = await two_machines(tmp_path)
    plan = await machines.plan()
    (node,) = plan.nodes
    assert plan.instance == "near"
    assert (node.source, node.kept) == (None, Tier.GPU)
    assert node.peer is not None
    assert (node.peer.location, node.peer.addresses, node.peer.tier) == ("far machine", ("far:1",), HOST)


async def test_a_failed_read_closes_the_link_for_twice_as_long_each_time(tmp_path):
    machines = await two_machines(tmp_path)
    for pause in (2, 4, 8, 16, 32, 60, 60):
        await machines.complete(await machines.plan(), FAILED)
        assert not await machines.reads()
        machines.passes(pause - 0.5)
        assert not await machines.reads()
        machines.passes(0.5)
        assert await machines.reads()


async def test_a_read_that_goes_well_makes_the_next_pause_short(tmp_path):
    machines = await two_machines(tmp_path)
    for _ in range(2):
        await machines.complete(await machines.plan(), FAILED)
        machines.passes(4)
    await machines.complete(await machines.plan(), READ)
    await machines.complete(await machines.plan(), FAILED)
    machines.passes(2)
    assert await machines.reads()


async def test_one_plan_at_a_time_tries_a_link_whose_pause_is_over(tmp_path):
    machines = await two_machines(tmp_path)
    await machines.complete(await machines.plan(), FAILED)
    machines.passes(2)
    trial = await machines.plan()
    assert trial.nodes[0].peer is not None
    # Another query does not wait for a peer that may still be away.
    assert not await machines.reads()
    await machines.complete(trial, READ)
    assert await machines.reads()
    assert await machines.reads()


async def test_a_trial_that_fails_closes_the_link_again_for_longer(tmp_path):
    machines = await two_machines(tmp_path)
    await machines.complete(await machines.plan(), FAILED)
    machines.passes(2)
    await machines.complete(await machines.plan(), FAILED)
    machines.passes(3.5)
    assert not await machines.reads()
    machines.passes(0.5)
    assert await machines.reads()


async def test_a_link_is_tried_again_if_its_trial_says_nothing(tmp_path):
    machines = await two_machines(tmp_path)
    await machines.complete(await machines.plan(), FAILED)
    machines.passes(2)
    assert await machines.reads()
    assert not await machines.reads()
    machines.passes(9.5)
    assert not await machines.reads()
    machines.passes(0.5)
    assert await machines.reads()


async def test_an_instance_that_restarts_is_given_another_chance(tmp_path):
    machines = await two_machines(tmp_path)
    await machines.complete(await machines.plan(), FAILED)
    machines.fleet.engines["near"].restarts()
    await machines.live.follow()
    assert await machines.reads()


async def test_a_failure_is_known_at_the_first_token(tmp_path):
    machines = await two_machines(tmp_path)
    plan = await machines.plan()
    await machines.live.controller.prefilled(plan.query_id, (), (FAILED,))
    # The answer goes on, and the next plan is not made over the link any more.
    assert not machines.live.controller._tree.tiers.links.serves("far machine", "near")
    await machines.complete(plan)


async def test_reads_are_counted(tmp_path):
    machines = await two_machines(tmp_path)
    await machines.complete(await machines.plan(), READ)
    await machines.complete(await machines.plan(), FAILED)
    stats = await machines.live.controller.stats()
    assert (stats.peer_tokens, stats.peer_failures) == (TOKENS, 1)


async def test_slow_reads_are_given_up_for_computing(tmp_path):
    machines = await two_machines(tmp_path)
    # Computing takes a millisecond a token, as the engine says when it is profiled.
    for _ in range(30):
        plan = await machines.plan()
        await machines.complete(plan, KvRead("far machine", TOKENS, 1.0))
    assert not await machines.reads()
    # Perhaps that was a bad moment.
    machines.passes(60)
    assert await machines.reads()


async def test_what_loads_slower_than_it_computes_is_computed(tmp_path):
    machines = await two_machines(tmp_path)
    controller = machines.live.controller

    async def source() -> Tier | None:
        """Where a query takes the document from on the machine whose host memory has it."""
        machines.asked += 1
        plan = await controller.admit(msgspec.structs.replace(ask(f"query {machines.asked}", "h"), avoid=("near",)))
        (node,) = plan.nodes
        await machines.complete(plan, KvRead("", TOKENS, waits_s, tier=HOST))
        return node.source

    waits_s = 2 * TOKENS / 1000
    assert await source() is HOST
    for _ in range(10):
        await source()
    assert await source() is None
    machines.passes(60)
    assert await source() is HOST


async def test_what_the_other_machine_does_not_have_is_not_asked_for_again(tmp_path):
    machines = await two_machines(tmp_path)
    plan = await machines.plan()
    await machines.live.controller.prefilled(plan.query_id, (LostCopy(key("h"), HOST, "far machine"),))
    await machines.complete(plan)
    machines.passes(100)
    assert not await machines.reads()


def test_reading_elsewhere_is_assumed_to_take_a_nanosecond_a_byte():
    device = DeviceProfile.shipped("a10g-7b")
    assert device.costs.peer_token_s == device.kv_bytes_per_token / 1e9
