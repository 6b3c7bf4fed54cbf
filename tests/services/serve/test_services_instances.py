"""Calls reach the instance that they name: Serve's router over fake replicas, handles over a fake caller."""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from protocol.errors import DeployFailed, EngineDied
from protocol.generation import GenerationStep, Sampling
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from services.serve.caller import replicas_of, set_replicas
from services.serve.handles import GeneratorHandle, ServedInstances
from services.serve.instance_router import InstanceRouter

APP = "generator"
DEPLOYMENT = DeploymentID(name=APP, app_name=APP)


class Replica:
    """A replica with room, as Serve's router sees it."""

    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.max_ongoing_requests = 100
        self.node_id, self.availability_zone = "node", None
        self.multiplexed_model_ids: set[str] = set()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        await asyncio.sleep(0)
        return 0


def call(named: str = "", request: str = "request") -> PendingRequest:
    metadata = RequestMetadata(request_id=request, internal_request_id=request, multiplexed_model_id=named)
    return PendingRequest(args=[], kwargs={}, metadata=metadata)


@pytest.fixture
async def router():
    set_replicas(APP, ())
    router = InstanceRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=False)
    router.update_replicas([Replica(name) for name in ("a", "b", "c")])
    yield router
    set_replicas(APP, ())


def names(replicas) -> list[str]:
    return [replica.replica_id.unique_id for replica in replicas]


async def test_router_sends_a_named_call_to_its_instance_and_others_to_any(router):
    candidates = [Replica(name) for name in ("a", "b", "c")]
    assert [names(rank) for rank in await router.choose_replicas(candidates, call("b"))] == [["b"]]
    assert [names(rank) for rank in await router.choose_replicas(candidates, call())] == [["a", "b", "c"]]
    assert [names(rank) for rank in await router.choose_replicas(candidates)] == [["a", "b", "c"]]


async def test_router_falls_back_to_another_replica_if_the_named_one_is_gone(router):
    assert names((await router.choose_replicas([Replica("a"), Replica("b")], call("gone")))[0]) == ["a", "b"]
    assert (await router.choose_replicas([], call("gone"))) == [[]]


async def test_router_records_the_replicas_of_its_application(router):
    assert replicas_of(APP) == {"a", "b", "c"}
    router.update_replicas([Replica("b")])
    assert replicas_of(APP) == {"b"}
    assert replicas_of("another") == frozenset()


async def test_concurrent_calls_reach_their_instances(router):
    wanted = ["a", "b", "c", "b", "a", "c"] * 5
    async with asyncio.timeout(5):
        chosen = await asyncio.gather(
            *(router._choose_replica_for_request(call(name, f"request {n}")) for n, name in enumerate(wanted))
        )
    assert names(chosen) == wanted


async def test_concurrent_calls_of_one_request_reach_their_instances(router):
    """Serve gives all calls within one of its requests the id of that request."""
    wanted = ["a", "b", "c", "b", "a"]
    async with asyncio.timeout(5):
        chosen = await asyncio.gather(*(router._choose_replica_for_request(call(name)) for name in wanted))
    assert names(chosen) == wanted


async def test_router_keeps_no_reference_to_a_routed_call(router):
    """Each call has a prompt. Serve's own code keeps calls that name a replica until the next search for that name."""
    made = [call(name, f"request {n}") for n, name in enumerate(["a", "b", "a", ""] * 5)]
    left = [weakref.ref(each) for each in made]
    async with asyncio.timeout(5):
        await asyncio.gather(*map(router._choose_replica_for_request, made))
        del made
        while router._routing_tasks:
            await asyncio.sleep(0)
    gc.collect()
    assert [each() for each in left if each() is not None] == []


async def test_a_cancelled_call_does_not_block_others(router):
    async with asyncio.timeout(5):
        calls = [asyncio.create_task(router._choose_replica_for_request(call(name))) for name in "abc"]
        await asyncio.sleep(0)
        calls[0].cancel()
        assert names([await calls[1], await calls[2]]) == ["b", "c"]
        assert names([await router._choose_replica_for_request(call("a"))]) == ["a"]
    assert not router._pending_requests_by_id


# Handles


class Part:
    """``DeploymentCaller`` of all instances, or of one: records its calls, and streams two steps."""

    def __init__(self, instance: str = "", calls: list | None = None, app: str = APP) -> None:
        self.instance = instance
        self.calls = calls if calls is not None else []
        self.app = app
        self.error: Exception | None = None

    def at(self, instance: str) -> "Part":
        return Part(instance, self.calls, self.app)

    async def ready(self) -> None:
        self.calls.append((self.instance, "ready"))
        if self.error is not None:
            raise self.error

    async def call(self, method: str, *arguments: object) -> None:
        self.calls.append((self.instance, method, *arguments))

    async def stream(self, method, plan, sampling):
        self.calls.append((self.instance, method, plan.query_id))
        try:
            for word in "ab":
                yield GenerationStep(word, 1, None, None)
            if plan.namespace == "breaks":
                raise EngineDied("gone")
        finally:
            self.calls.append((self.instance, "closed", plan.query_id))


def plan(query_id: str, instance: str, namespace: str = "n") -> PrefillPlan:
    return PrefillPlan(query_id, instance, namespace, Prompt(()))


@pytest.fixture
def part():
    set_replicas(APP, ("a", "b"))
    yield Part()
    set_replicas(APP, ())


async def test_handle_streams_and_ends_a_plan_on_its_instance(part):
    generator = GeneratorHandle(part)
    streams = [generator.stream(plan(name, name), Sampling(8)) for name in ("a", "b")]
    await generator.end("a")
    assert part.calls == [], "no stream is open"
    for stream in streams:
        await anext(stream)
    await generator.end("b")
    assert part.calls[-1] == ("b", "end", "b")
    await streams[1].aclose()
    assert part.calls[-1] == ("b", "closed", "b")
    before = len(part.calls)
    await generator.end("b")
    assert len(part.calls) == before
    await generator.end("a")
    assert part.calls[-1] == ("a", "end", "a")
    assert [step.text async for step in streams[0]] == ["b"]
    assert generator._streaming == {}


async def test_handle_sends_a_plan_without_instance_to_any(part):
    generator = GeneratorHandle(part)
    stream = generator.stream(plan("q", ""), Sampling(8))
    await anext(stream)
    await generator.end("q")
    assert [call[0] for call in part.calls] == ["", ""]
    await stream.aclose()


async def test_handle_forgets_a_stream_that_breaks(part):
    generator = GeneratorHandle(part)
    with pytest.raises(EngineDied):
        async for _ in generator.stream(plan("q", "a", "breaks"), Sampling(8)):
            pass
    assert generator._streaming == {}
    assert part.calls[-1] == ("a", "closed", "q")


async def test_handle_forgets_instances_that_are_gone(part):
    generator = GeneratorHandle(part)
    first = generator.at("a")
    assert generator.at("a") is first
    for number in range(100):
        set_replicas(APP, (f"new {number}",))
        generator.at(f"new {number}")
    assert len(generator._at) <= 2
    assert generator.names() == {"new 99"}
    # A handle of a gone instance still exists; its calls raise.
    await generator.at("a").carry_out(SimpleNamespace())
    assert part.calls[-1][:2] == ("a", "carry_out")


@pytest.fixture
def generators():
    """Handles of two generators and a KV generator."""
    set_replicas(APP, ("a", "b"))
    set_replicas("kv_generator", ("k",))
    yield [GeneratorHandle(Part(app=app)) for app in (APP, "kv_generator")]
    for app in (APP, "kv_generator"):
        set_replicas(app, ())


async def test_the_controller_reaches_generators_and_kv_generators(generators):
    instances = ServedInstances(*generators)
    assert (set(instances.names()), set(instances.kv_generators())) == ({"a", "b", "k"}, {"k"})
    assert {name: instances.at(name).caller.app for name in "abk"} == {"a": APP, "b": APP, "k": "kv_generator"}
    without = ServedInstances(generators[0])
    assert (set(without.names()), set(without.kv_generators())) == ({"a", "b"}, set())


@pytest.mark.parametrize("error", [None, EngineDied("it is starting"), DeployFailed("it cannot start")])
async def test_queries_do_not_wait_for_kv_generators(generators, error):
    generator, kv_generator = generators
    kv_generator.caller.error = error
    await ServedInstances(generator, kv_generator).ready()
    assert kv_generator.caller.calls == [("", "ready")]
