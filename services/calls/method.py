"""How a contract's methods are called over a connection: what they take and give, as bytes."""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from protocol.parts import is_per_query


def _as_number(value: object) -> object:
    """NumPy's scalars count as numbers. Raises NotImplementedError for all else that msgspec does not know."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to another process")


encoder = msgspec.msgpack.Encoder(enc_hook=_as_number)
"""Encodes all that goes over a connection."""


class Parameters:
    """The parameters of a function, without ``self``, by the types that it declares."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._signature = inspect.Signature(parameters)
        hints = get_type_hints(function)
        taken = tuple(hints[parameter.name] for parameter in parameters)
        self._decoder = msgspec.msgpack.Decoder(tuple[taken])  # type: ignore[valid-type]

    def encode(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> bytes:
        """Encode all arguments in order, those left out by their defaults. Raises TypeError if they do not fit."""
        bound = self._signature.bind(*arguments, **named)
        bound.apply_defaults()
        return encoder.encode(bound.args + tuple(bound.kwargs.values()))

    def decode(self, encoded: msgspec.Raw | bytes) -> tuple[Any, ...]:
        """Return all arguments in order. Raises msgspec.DecodeError if they are of other types."""
        arguments: tuple[Any, ...] = self._decoder.decode(encoded)
        return arguments


class Method:
    """A method of a contract: ``streams`` if it yields what it ``gives``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.takes = Parameters(function)
        given = get_type_hints(function)["return"]
        self.streams = get_origin(given) is AsyncGenerator
        self.gives: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            get_args(given)[0] if self.streams else given
        )


@cache
def methods_of(contract: type) -> dict[str, Method]:
    """The methods of a contract that are marked with ``per_query``, by name."""
    functions = inspect.getmembers(contract, is_per_query)
    return {name: Method(function) for name, function in functions}
