"""``ragtree adapters``: shows, loads and unloads adapters of a running stack."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from services.cli.connection import AdminKeyOption, JsonOption, UrlOption, connect_as_admin
from services.cli.output import errors, results, tables

app = typer.Typer(
    help="Show, load and unload LoRA adapters of a running stack. Needs an administrator's key.", no_args_is_help=True
)
NameArgument = Annotated[str, typer.Argument(help="The name that requests give as their model.")]


@app.command("list")
def list_adapters(url: UrlOption = None, admin_key: AdminKeyOption = None, as_json: JsonOption = False) -> None:
    """Show the adapters that are served as models of their names."""
    served = connect_as_admin(url, admin_key).adapters()
    if as_json:
        print(json.dumps(served))
        return
    table = Table("adapter", "digest", Column("loaded from", overflow="fold"), box=None, pad_edge=False)
    for adapter in served["data"]:
        table.add_row(adapter["name"], adapter["digest"], escape(adapter["source"] or "the configuration"))
    if served["data"]:
        tables.print(table)
    else:
        results.print("No adapters are served.")


@app.command()
def load(
    name: NameArgument,
    source: Annotated[
        str, typer.Argument(help="Its folder, which all machines of the stack have, or its Hugging Face id.")
    ],
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an adapter as a model, on all instances. Needs a free place: generator.engine_args.max_loras."""
    if source.startswith((".", "~")):
        source = str(Path(source).expanduser().absolute())
    loaded = connect_as_admin(url, admin_key).load_adapter(name, source)
    if as_json:
        print(json.dumps(loaded))
        return
    errors.print(f"{name} is served.", markup=False)


@app.command()
def unload(
    name: NameArgument, url: UrlOption = None, admin_key: AdminKeyOption = None, as_json: JsonOption = False
) -> None:
    """Serve an adapter no more. Requests that have begun go on."""
    unloaded = connect_as_admin(url, admin_key).unload_adapter(name)
    if as_json:
        print(json.dumps(unloaded))
        return
    errors.print(f"{name} is unloaded.", markup=False)
