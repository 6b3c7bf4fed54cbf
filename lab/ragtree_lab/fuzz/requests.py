"""What a campaign sends: requests as bytes, so that every one can be kept and sent again as it was."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Caller(StrEnum):
    """Whose key a request has."""

    NOBODY = "nobody"
    STRANGER = "stranger"
    ADMIN = "admin"

    @property
    def placeholder(self) -> str:
        """What stands for the key until the request is sent. Kept requests therefore hold no key."""
        return f"@KEY-OF-{self.name}@"


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a request, sent ``after_s`` seconds after the piece before it."""

    content: bytes
    after_s: float = 0.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One connection: what is sent on it, from ``starts_s`` seconds after the input's start.

    The client leaves after ``leaves_s`` seconds if that is set, with a reset if ``resets``. A ``rude`` request is no
    proper HTTP, so nothing is expected of its answer but that it is no 5xx. ``refused_within_s`` is how long a refusal
    may take.
    """

    pieces: tuple[Piece, ...]
    starts_s: float = 0.0
    leaves_s: float | None = None
    resets: bool = False
    rude: bool = False
    refused_within_s: float = 10.0

    @property
    def line(self) -> str:
        """The first line, for people."""
        return self.pieces[0].content.partition(b"\r\n")[0].decode("latin-1")[:200] if self.pieces else ""

    @property
    def method(self) -> str:
        """The method of a well-formed request."""
        return self.line.partition(" ")[0]

    def sent(self, keys: Mapping[Caller, str]) -> list[Piece]:
        """The pieces with the callers' keys in place of their placeholders."""
        return [Piece(_filled(piece.content, keys), piece.after_s) for piece in self.pieces]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is tried: requests that belong together. ``files`` of them upload a file for a loader."""

    requests: tuple[Request, ...]
    files: int = 0


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """An input with its origin. Equal seeds, sources and numbers give equal inputs."""

    source: str
    seed: int
    number: int
    input: Input


def call(
    method: str,
    target: str,
    body: bytes | None = None,
    *,
    caller: Caller = Caller.STRANGER,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A well-formed request."""
    lines = [f"{method} {target} HTTP/1.1", "Host: fuzz"]
    if caller is not Caller.NOBODY:
        lines.append(f"Authorization: Bearer {caller.placeholder}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape") + (body or b"")


def json_call(target: str, body: Any, *, method: str = "POST", caller: Caller = Caller.STRANGER) -> bytes:  # noqa: ANN401 - any JSON
    """A request with a JSON body."""
    content = json.dumps(body).encode()
    return call(method, target, content, caller=caller, headers={"Content-Type": "application/json"})


def one(content: bytes, **how: Any) -> Input:  # noqa: ANN401 - the fields of Request
    """An input of one request."""
    return Input(requests=(Request(pieces=(Piece(content),), **how),))


def _filled(content: bytes, keys: Mapping[Caller, str]) -> bytes:
    head, end, body = content.partition(b"\r\n\r\n")
    for caller, key in keys.items():
        head = head.replace(caller.placeholder.encode(), key.encode())
    return head + end + body
