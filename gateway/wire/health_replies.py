"""Replies of the health checks."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    """The gateway is alive."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """Queries can be served. ``degraded`` names the stores that cannot be reached."""

    status: Literal["ok"] = "ok"
    degraded: tuple[str, ...] = ()
