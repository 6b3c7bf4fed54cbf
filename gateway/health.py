"""The reply of the health checks."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    """All is well."""

    status: Literal["ok"] = "ok"
