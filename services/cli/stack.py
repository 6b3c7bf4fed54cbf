"""``ragtree up``, ``join``, ``down`` and ``status``: start, join, stop and check a stack on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli.connection import ApiKeyOption, JsonOption, UrlOption, connect
from services.cli.models import advice, described
from services.cli.output import errors, results
from services.config import Config, load_config
from services.model import generator_factory
from services.stack.run_state import StackProcess

MODEL_VARIABLE = "RAGTREE_GENERATOR__MODEL"
"""The environment variable that tells a detached stack its model."""


def up(
    model: Annotated[
        str | None,
        typer.Option(
            help="A GGUF file, a model folder or a Hugging Face id, as `ragtree models` lists them; by default the "
            "configured one (generator.model)."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the stack is ready, and leave it running.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(help="With --detach: stop the stack if it is not ready after this many seconds.")
    ] = 300.0,
) -> None:
    """Start the stack. Ctrl-C stops it."""
    config = _with_model(load_config(), model)
    if not detach:
        config.observability.configure_logging()
    better = advice(config)
    if better is not None:
        errors.print(better, soft_wrap=True)
    # Convert or download here, in view of the user: it may take longer than the stack waits for its gateway.
    if config.generator.engine == "vllm":
        errors.print(f"Preparing the model {config.generator.model}", markup=False, soft_wrap=True)
    factory = generator_factory(config)
    factory.fetch()
    facts = factory.facts() if config.generator.engine == "vllm" else None
    if facts is not None:
        errors.print(described(config, facts), markup=False, soft_wrap=True)
    if detach:
        environment = {MODEL_VARIABLE: config.generator.model}
        with errors.status("starting Ray") as spinner:
            running = StackProcess(config.data_dir, environment).start(wait_s, on_wait=spinner.update)
        errors.print(f"Ready at [bold]{running.url}[/] (process {running.pid}); stop it with `ragtree down`.")
        return
    from services.stack.foreground import Stack

    Stack(config).run()


def _with_model(config: Config, model: str | None) -> Config:
    """Return the configuration with another model. A path on this machine becomes absolute."""
    if model is None:
        return config
    place = Path(model).expanduser()
    name = str(place.absolute()) if place.exists() else model
    return config.model_copy(update={"generator": config.generator.model_copy(update={"model": name})})


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
        results.print(f"{client.url}: {missing.reason if missing else 'ready'}")
        for held in collections:
            results.print(f"  {held['name']}: {held['documents']} documents, {held['chunks']} chunks")
    raise typer.Exit(0 if missing is None else 1)


def join(
    head: Annotated[
        str, typer.Argument(metavar="HEAD:PORT", help="The first machine and its cluster.port.", show_default=False)
    ],
    wait_s: Annotated[
        float, typer.Option(help="Give up if this machine is not a member after this many seconds.")
    ] = 120.0,
) -> None:
    """Run engines of another machine's stack on this machine. Ctrl-C leaves it.

    The first machine runs `ragtree up` with cluster.port. Both need the same RAGTree, Ray's token
    (~/.ray/auth_token) and, to read each other's KV, the same generator.kv.peers.key_file. Folders, memory and
    addresses are this machine's own options; all else comes from the first machine.
    """
    config = load_config()
    config.observability.configure_logging()
    # Ray takes a second to import.
    from services.cluster.member import Member

    def joined() -> None:
        room = config.cluster.engines
        errors.print(f"Joined {head} with room for {room} instance{'s' * (room != 1)}. Ctrl-C leaves.")

    Member(config, head).run(wait_s, lambda what: errors.print(what, markup=False), joined)
