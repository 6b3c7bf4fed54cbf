"""Calls that go over a connection to a replica, and those that stay with Ray Serve, whose part is a fake here."""

import asyncio
import threading
from contextlib import aclosing
from contextvars import ContextVar

import pytest

from protocol.errors import EngineDied, EngineNotReady, InternalError, RagtreeError
from protocol.generation import GenerationStep, Sampling
from protocol.parts import Generator
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from services.calls.method import methods_of
from services.calls.server import CallServer
from services.serve import replica_caller
from services.serve.caller import translated
from services.serve.replica_caller import ReplicaCaller

PLAN = PrefillPlan("q", "a", "n", Prompt((Segment(SegmentKind.QUESTION, "k", (1, 2)),)))


request: ContextVar[str] = ContextVar("request")
"""As Ray Serve's own, by which it cancels what a request has called."""


class Engine:
    """Streams the name of its instance, and then two steps; waits with ``end``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self.called = 0

    async def stream(self, plan, sampling):
        assert (plan, sampling) == (PLAN, Sampling(8))
        self.called += 1
        for text in (self.name, "b", "c"):
            yield GenerationStep(text, 1)

    async def end(self, plan_id):
        self.called += 1
        if plan_id == "broken":
            raise EngineNotReady("not yet")
        if plan_id == "over":
            return
        await self.ended.wait()


class Deployment:
    """``DeploymentCaller`` of one replica at a time, which may be another one at each call."""

    app = "generator"

    def __init__(self) -> None:
        self.servers: list[CallServer] = []
        self.asked: list[str] = []
        self.belonged_to: list[str | None] = []

    async def serve(self, engine: Engine, but: str = "") -> CallServer:
        methods = [method for name, method in methods_of(Generator).items() if name != but]
        server = CallServer(methods)
        await server.listen(engine, "127.0.0.1")
        self.servers.append(server)
        return server

    def at(self, instance):
        self.asked.append(f"at {instance}")
        return self

    async def call(self, method, *arguments, **named):
        self.asked.append(method)
        await asyncio.sleep(0)
        if method != "address":
            return (method, arguments, named)
        self.belonged_to.append(request.get(None))
        if not self.servers:
            raise self.translated(EngineDied("no replica"))
        return self.servers[-1].address

    async def stream(self, method, *arguments):
        self.asked.append(method)
        yield GenerationStep("over Serve", 1)

    async def ready(self):
        self.asked.append("ready")

    def translated(self, error) -> RagtreeError:
        return translated(error, "generator", EngineDied)


@pytest.fixture
async def deployment():
    deployment = Deployment()
    yield deployment
    for server in deployment.servers:
        await server.close(0)


@pytest.fixture
def caller(deployment):
    return ReplicaCaller(deployment, Generator)


async def texts(caller) -> list[str]:
    return [step.text async for step in caller.stream("stream", PLAN, Sampling(8))]


async def test_calls_of_queries_share_a_connection_and_others_go_over_serve(deployment, caller):
    await deployment.serve(Engine("one"))
    assert await asyncio.gather(texts(caller), texts(caller)) == [["one", "b", "c"]] * 2
    await caller.call("end", plan_id="over")
    assert deployment.asked == ["address"]
    assert await caller.call("unload_adapter", "x", y=1) == ("unload_adapter", ("x",), {"y": 1})
    await caller.ready()
    assert deployment.asked == ["address", "unload_adapter", "ready"]
    assert caller.at("a").app == "generator"
    assert deployment.asked[-1] == "at a"


async def test_what_a_replica_does_not_serve_goes_over_serve(deployment, caller):
    await deployment.serve(Engine("one"), but="stream")
    assert await texts(caller) == ["over Serve"]
    await caller.call("end", "over")
    assert deployment.asked == ["address", "stream"]


async def test_a_stopping_replica_is_left_for_the_next_one(deployment, caller):
    stopping, engine = await deployment.serve(Engine("one")), Engine("two")
    assert await texts(caller) == ["one", "b", "c"]
    stream = caller.stream("stream", PLAN, Sampling(8))
    await anext(stream)
    closing = asyncio.create_task(stopping.close(10))
    await asyncio.sleep(0)
    late = asyncio.create_task(texts(caller))
    # Until Serve has another one, the next call asks again.
    while deployment.asked.count("address") < 3:
        await asyncio.sleep(0.01)
    await deployment.serve(engine)
    assert await late == ["two", "b", "c"]
    assert [step.text async for step in stream] == ["b", "c"], "what has begun goes on at the stopping replica"
    await closing


async def test_calls_that_a_replica_took_with_it_are_not_repeated(deployment, caller):
    engine = Engine("one")
    server = await deployment.serve(engine)
    call = asyncio.create_task(caller.call("end", "q"))
    while not engine.called:
        await asyncio.sleep(0.001)
    await server.close(0)
    with pytest.raises(EngineDied, match="the generator is not available") as died:
        await call
    assert died.value.begun
    assert engine.called == 1


async def test_errors_of_the_part_arrive_as_themselves(deployment, caller):
    await deployment.serve(Engine("one"))
    with pytest.raises(EngineNotReady, match="not yet"):
        await caller.call("end", "broken")
    with pytest.raises(InternalError):
        await caller.call("end", object())


async def test_without_a_replica_calls_raise_the_parts_error(deployment, caller, monkeypatch):
    monkeypatch.setattr(replica_caller, "PATIENCE_S", 0.2)
    for _ in range(2):
        with pytest.raises(EngineDied, match="no replica"):
            await caller.call("end", "q")
    gone = await deployment.serve(Engine("one"))
    await gone.close(0)
    with pytest.raises(EngineDied, match="not available") as died:
        await texts(caller)
    assert not died.value.begun
    assert deployment.asked.count("address") > 3


async def test_a_cancelled_call_leaves_the_connection_to_others(deployment, caller):
    await deployment.serve(Engine("one"))
    calls = [asyncio.create_task(texts(caller)) for _ in range(2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert await calls[1] == ["one", "b", "c"]
    assert deployment.asked == ["address"]


async def test_what_the_first_call_belongs_to_does_not_concern_the_others(deployment, caller):
    await deployment.serve(Engine("one"))
    request.set("first")
    assert await texts(caller) == ["one", "b", "c"]
    assert deployment.belonged_to == [None]


async def test_each_event_loop_has_a_connection_of_its_own(deployment, caller):
    await deployment.serve(Engine("one"))
    assert await texts(caller) == ["one", "b", "c"]
    found: list[list[str]] = []
    other = threading.Thread(target=lambda: found.append(asyncio.run(texts(caller))))
    other.start()
    while other.is_alive():
        await asyncio.sleep(0.01)
    assert found == [["one", "b", "c"]]
    assert await texts(caller) == ["one", "b", "c"]
    assert deployment.asked == ["address"] * 3


async def test_closing_a_stream_closes_that_of_serve(deployment, caller):
    await deployment.serve(Engine("one"), but="stream")
    async with aclosing(caller.stream("stream", PLAN, Sampling(8))) as steps:
        assert (await anext(steps)).text == "over Serve"
