"""The replies of the health checks."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    """All is well."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """Queries can be served; without the help of those stores that are ``degraded``, for they cannot be reached."""

    status: Literal["ok"] = "ok"
    degraded: tuple[str, ...] = ()
