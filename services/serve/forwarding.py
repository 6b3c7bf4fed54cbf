"""Forwards the calls of a contract, so that each method is written only in the contract and in the part.

A contract is a ``Protocol`` class. Its ``async def`` methods are unary calls; its plain methods are streams
(``AsyncGenerator``). Private methods and properties are not forwarded.

- On the caller's side is a handle: ``forwarding`` makes a whole object, ``forwarded`` a single method.
- On the replica's side is a deployment: ``serves`` adds the methods to its class.

Special cases stay ordinary methods: ``serves`` skips the methods that a class defines itself.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
Contract = TypeVar("Contract")
Deployment = TypeVar("Deployment", bound=type)


class Caller(Protocol):
    """Calls methods of a part by name."""

    async def call(self, method: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401
        """Return the method's result."""

    def stream(self, method: str, *arguments: object, **named: object) -> AsyncGenerator[Any, None]:
        """Return the items that the method yields."""

    async def ready(self) -> None:
        """Return when the part is ready."""


def forwarded(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Make a method that forwards to ``self.caller``, with the name and the types of a contract's ``method``."""
    name = method.__name__

    def forward(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: ANN401 - any class with a `caller`
        caller: Caller = self.caller
        call = caller.call if inspect.iscoroutinefunction(method) else caller.stream
        return cast("R", call(name, *args, **kwargs))

    functools.update_wrapper(forward, method)
    return forward


def forwarding(contract: type[Contract], caller: Caller) -> Contract:
    """Make an object that fulfils ``contract`` by forwarding to ``caller``. ``ready`` is the caller's own."""
    members: dict[str, object] = {method.__name__: forwarded(method) for method in _methods(contract)}
    members |= {"caller": caller, "ready": lambda _self: caller.ready()}
    return cast("Contract", type(f"Forwarding{contract.__name__}", (), members)())


def serves(contract: type, part: str) -> Callable[[Deployment], Deployment]:
    """Add the methods of ``contract`` to a deployment's class; each forwards to the attribute named ``part``."""

    def add(deployment: Deployment) -> Deployment:
        for method in _methods(contract):
            if method.__name__ not in vars(deployment):
                make = _unary if inspect.iscoroutinefunction(method) else _stream
                setattr(deployment, method.__name__, make(method, part))
        return deployment

    return add


def _methods(contract: type) -> list[Callable[..., Any]]:
    return [method for name, method in inspect.getmembers(contract, inspect.isfunction) if not name.startswith("_")]


def _unary(method: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(method)
    async def forward(self: object, *args: object, **kwargs: object) -> object:
        return await getattr(getattr(self, part), method.__name__)(*args, **kwargs)

    return forward


def _stream(method: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(method)
    async def forward(self: object, *args: object, **kwargs: object) -> AsyncGenerator[object, None]:
        async with aclosing(getattr(getattr(self, part), method.__name__)(*args, **kwargs)) as items:
            async for item in items:
                yield item

    return forward
