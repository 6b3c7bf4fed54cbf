"""Between a caller and a part lie a handle and a deployment, and both pass on every call of the part's contract."""

import inspect

import pytest

from protocol import parts
from retriever.sharding.shard import Shard
from retriever.sharding.sharded_retriever import ShardedRetriever
from services.serve.deployments.controller import ControllerDeployment
from services.serve.deployments.generator import GeneratorDeployment
from services.serve.deployments.retriever import RetrieverDeployment
from services.serve.handles import ControllerHandle, GeneratorHandle, RetrieverHandle


def calls(contract: type) -> dict[str, list[str]]:
    """The parameters of a contract's calls by name."""
    found = inspect.getmembers(contract, inspect.isfunction)
    return {name: list(inspect.signature(call).parameters) for name, call in found if not name.startswith("_")}


@pytest.mark.parametrize(
    ("contract", "passing"),
    [
        (parts.Retriever, ShardedRetriever),
        (Shard, RetrieverHandle),
        (Shard, RetrieverDeployment),
        (parts.Controller, ControllerHandle),
        (parts.Controller, ControllerDeployment),
        (parts.Generator, GeneratorHandle),
        (parts.Generator, GeneratorDeployment),
    ],
)
def test_every_call_is_passed_on_with_what_it_takes(contract: type, passing: type):
    promised = calls(contract)
    assert promised
    passed = calls(passing)
    assert {name: passed.get(name) for name in promised} == promised
