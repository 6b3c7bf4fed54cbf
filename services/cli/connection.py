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


def connect(url: str | None, api_key: str | None) -> StackClient:
    """Return a client for the given stack, or for the one that runs on the configured data folder."""
    if url is None:
        config = load_config()
        running = RunState(config.data_dir).running()
        url = running.url if running else f"http://{config.server.host}:{config.server.port}"
    return StackClient(url, api_key)
