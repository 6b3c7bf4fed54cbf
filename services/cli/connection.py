"""How a command finds the stack it talks to."""

from typing import Annotated

import typer

from services.client import StackClient
from services.config import load_config
from services.stack.run_state import RunState

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="RAGTREE_URL", help="The stack's address; by default the one that runs here."),
]
ApiKeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="RAGTREE_API_KEY", help="An API key, if the stack asks for one.")
]
CollectionOption = Annotated[str, typer.Option(help="The collection to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def connect(url: str | None, api_key: str | None) -> StackClient:
    """A client for the named stack, or for the one that runs on the configured data folder."""
    if url is None:
        config = load_config()
        running = RunState(config.data_dir).running()
        url = running.url if running else f"http://{config.server.host}:{config.server.port}"
    return StackClient(url, api_key)
