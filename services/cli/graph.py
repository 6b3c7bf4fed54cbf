"""``ragtree graph``: looks at a collection's knowledge graph."""

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from protocol.documents import DEFAULT_COLLECTION
from services.cli.connection import ApiKeyOption, CollectionOption, JsonOption, UrlOption, connect
from services.cli.output import errors, results

app = typer.Typer(help="Look at a collection's knowledge graph.", no_args_is_help=True)


@app.callback()
def commands() -> None:
    """Keep ``show`` its own command, although it is the only one."""


@app.command()
def show(
    labels: Annotated[
        list[str] | None, typer.Argument(help="Names of entities. By default, the most mentioned ones.")
    ] = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    max_depth: Annotated[int, typer.Option(help="How many relations away an entity may be.")] = 2,
    max_nodes: Annotated[int, typer.Option(help="Most entities.")] = 50,
    max_relations: Annotated[int, typer.Option(help="Most relations.")] = 100,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the relations around these entities, and the entities that none relates."""
    found = connect(url, api_key).graph(collection, labels or [], max_depth, max_nodes, max_relations)
    if as_json:
        print(json.dumps(found))
        return
    _print_relations(found)
    if found["truncated"]:
        errors.print("[bold yellow]truncated:[/] there is more than --max-nodes, --max-relations or the server allows")
    if found["unread_chunks"]:
        errors.print(f"[bold yellow]unread:[/] the graph does not know {found['unread_chunks']:,} chunks yet")
    if found["unreadable_chunks"]:
        errors.print(
            f"[bold yellow]unreadable:[/] {found['unreadable_chunks']:,} chunks could not be read, and have no facts"
        )
    size = found["size"]
    results.print(
        f"graph of {found['collection']}: {size['entities']:,} entities, {size['statements']:,} statements, "
        f"{size['relations']:,} relations",
        style="dim",
    )


def print_relation(relation: dict[str, Any]) -> None:
    """Print a relation, and the document that states it."""
    stated = f"{relation['head']} -{relation['relation']}-> {relation['tail']}"
    # Text, not str: rich would take brackets in a name for markup.
    results.print(Text.assemble(stated, (f"  {relation['document_id']}", "dim")))


def _print_relations(found: dict[str, Any]) -> None:
    for relation in found["relations"]:
        print_relation(relation)
    related = {relation[end] for relation in found["relations"] for end in ("head", "tail")}
    for entity in found["entities"]:
        if entity["name"] not in related:
            results.print(Text(entity["name"]))
