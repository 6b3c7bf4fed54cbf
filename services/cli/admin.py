"""Options of the commands for administrators, and the connection that they use."""

from typing import Annotated

import typer

from services.cli.connection import connect
from services.client import StackClient
from services.config import load_config

AdminKeyOption = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar=["RAGTREE_GATEWAY__ADMIN_KEY", "RAGTREE_API_KEY"],
        help="Administrator's key, if the stack needs one; by default the configured one for the local stack.",
        show_default=False,
    ),
]
TenantOption = Annotated[str | None, typer.Option(help="Tenant of the documents; by default the administrator's own.")]


def connect_as_admin(url: str | None, admin_key: str | None) -> StackClient:
    """Return a client with an administrator's key for the given stack, or for the local one."""
    if url is None and admin_key is None:
        # Never send the configured key to a stack given by URL: it may not be the configured one.
        configured = load_config().gateway.admin_key
        admin_key = configured.get_secret_value() if configured is not None else None
    return connect(url, admin_key)
