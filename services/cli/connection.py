"""Finds the stack that a command talks to."""

from typing import Annotated

import typer

from services.client import StackClient
from services.config import load_config
from services.stack.run_state import RunState

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="RAGTREE_URL", help="Address of the stack; by default the local one."),
]
ApiKeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="RAGTREE_API_KEY", help="API key, if the stack needs one.")
]
CollectionOption = Annotated[str, typer.Option(help="Collection to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
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


def connect(url: str | None, api_key: str | None) -> StackClient:
    """Return a client for the given stack, or for the one that runs on the configured data folder."""
    if url is None:
        config = load_config()
        running = RunState(config.data_dir).running()
        url = running.url if running else f"http://{config.server.host}:{config.server.port}"
    return StackClient(url, api_key)


def connect_as_admin(url: str | None, admin_key: str | None) -> StackClient:
    """Return a client with an administrator's key for the given stack, or for the local one."""
    if url is None and admin_key is None:
        # Never send the configured key to a stack given by URL: it may not be the configured one.
        configured = load_config().gateway.admin_key
        admin_key = configured.get_secret_value() if configured is not None else None
    return connect(url, admin_key)
