"""``ragtree up``, ``down`` and ``status``: start, stop and check a stack on this machine."""

import json
from typing import Annotated

import typer

from services.cli.connection import ApiKeyOption, JsonOption, UrlOption, connect
from services.cli.output import errors, results
from services.config import load_config
from services.model import generator_factory
from services.stack.detached import StackProcess


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the stack is ready, and leave it running.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(help="With --detach: stop the stack if it is not ready after this many seconds.")
    ] = 300.0,
) -> None:
    """Start the stack. Ctrl-C stops it."""
    config = load_config()
    if not detach:
        config.observability.configure_logging()
    # Download here, in view of the user: it may take longer than the stack waits for its gateway.
    generator_factory(config).fetch()
    if detach:
        with errors.status("starting Ray") as spinner:
            running = StackProcess(config.data_dir).start(wait_s, on_wait=spinner.update)
        errors.print(f"Ready at [bold]{running.url}[/] (process {running.pid}); stop it with `ragtree down`.")
        return
    from services.stack.foreground import Stack

    Stack(config).run()


def down(
    wait_s: Annotated[float, typer.Option(help="Kill the stack if it still runs after this many seconds.")] = 60.0,
) -> None:
    """Stop the local stack."""
    stopped = StackProcess(load_config().data_dir).stop(wait_s)
    errors.print("Stopped." if stopped else "No stack is running.")


def status(url: UrlOption = None, api_key: ApiKeyOption = None, as_json: JsonOption = False) -> None:
    """Show whether the stack is ready, and its collections. The exit code is 0 only if it is ready."""
    client = connect(url, api_key)
    missing = client.readiness()
    collections = [] if missing else client.collections()
    if as_json:
        print(
            json.dumps(
                {
                    "url": client.url,
                    "ready": missing is None,
                    "missing": missing and missing.reason,
                    "collections": collections,
                }
            )
        )
    else:
        results.print(f"{client.url}: {missing.reason if missing else 'ready'}", highlight=False)
        for held in collections:
            results.print(f"  {held['name']}: {held['documents']} documents, {held['chunks']} chunks", highlight=False)
    raise typer.Exit(0 if missing is None else 1)
