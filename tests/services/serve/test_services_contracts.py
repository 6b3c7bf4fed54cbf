"""Handles and deployments pass on every call of a part's contract."""

import inspect

import pytest

from protocol import parts
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from retriever.sharding.shard_group import Shard
from retriever.sharding.sharded_retriever import ShardedRetriever
from services.serve.deployments import ControllerDeployment, GeneratorDeployment, RetrieverDeployment
from services.serve.forwarding import forwarding, serves
from services.serve.handles import GeneratorHandle


def calls(contract: type) -> dict[str, list[str]]:
    """The parameters of a contract's calls by name."""
    found = inspect.getmembers(contract, inspect.isfunction)
    return {name: list(inspect.signature(call).parameters) for name, call in found if not name.startswith("_")}


@pytest.mark.parametrize(
    ("contract", "passing"),
    [
        (parts.Retriever, ShardedRetriever),
        (Shard, RetrieverDeployment),
        (parts.Controller, ControllerDeployment),
        (parts.Generator, GeneratorHandle),
        (parts.Generator, GeneratorDeployment),
    ],
)
def test_every_call_is_passed_on_with_its_parameters(contract: type, passing: type):
    promised = calls(contract)
    assert promised
    passed = calls(passing)
    assert {name: passed.get(name) for name in promised} == promised


class Caller:
    """Records unary calls and streams."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    async def call(self, method, *arguments, **named):
        self.seen.append((method, arguments, named))
        return method

    async def stream(self, method, *arguments, **named):
        self.seen.append((method, arguments, named))
        yield method

    async def ready(self):
        self.seen.append(("ready",))


async def test_a_forwarding_object_makes_unary_calls_and_streams():
    caller = Caller()
    shard = forwarding(Shard, caller)
    assert calls(type(shard)).keys() == calls(Shard).keys()
    assert await shard.list_documents("t", "c", 10, after="x") == "list_documents"
    assert [item async for item in shard.search("request")] == ["search"]
    assert caller.seen == [("list_documents", ("t", "c", 10), {"after": "x"}), ("search", ("request",), {})]


async def test_readiness_is_asked_of_the_caller_itself():
    caller = Caller()
    await forwarding(parts.Controller, caller).ready()
    assert caller.seen == [("ready",)]


class Engine:
    def __init__(self) -> None:
        self.closed = False

    async def info(self):
        return "info"

    async def end(self, plan_id):
        raise ValueError(plan_id)

    async def stream(self, plan, sampling):
        try:
            yield plan.query_id
            yield sampling
        finally:
            self.closed = True


@serves(parts.Generator, "_engine")
class Deployment:
    def __init__(self) -> None:
        self._engine = Engine()

    async def residency(self):
        return "its own"


async def test_a_deployment_forwards_all_but_its_own_methods():
    deployment = Deployment()
    assert await deployment.info() == "info"
    assert await deployment.residency() == "its own"
    with pytest.raises(ValueError, match="q"):
        await deployment.end("q")


async def test_closing_a_deployments_stream_closes_the_parts_stream():
    deployment = Deployment()
    stream = deployment.stream(PrefillPlan("q", "", "n", Prompt(())), None)
    assert await anext(stream) == "q"
    await stream.aclose()
    assert deployment._engine.closed
