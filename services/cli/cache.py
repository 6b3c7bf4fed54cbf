"""``ragtree cache``: shows and manages the KV cache."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree

from protocol.documents import UNFINISHED
from services.cli.connection import AdminKeyOption, JsonOption, TenantOption, UrlOption, connect_as_admin
from services.cli.output import StepBars, errors, results
from services.cli.precompute import precompute
from services.client import StackClient

app = typer.Typer(help="Show and manage the KV cache. Needs an administrator's key.", no_args_is_help=True)
CollectionOption = Annotated[str | None, typer.Option(help="Collection to use.  [default: default]")]

_POLL_S = 0.2


@app.command()
def stats(url: UrlOption = None, admin_key: AdminKeyOption = None, as_json: JsonOption = False) -> None:
    """Show the contents of each tier of the cache."""
    held = connect_as_admin(url, admin_key).cache_stats()
    if as_json:
        print(json.dumps(held))
        return
    table = Table("tier", "at", "tokens", "of", "full", "MiB", "pinned", "nodes", "evictions")
    for column in table.columns[2:]:
        column.justify = "right"
    for tier in held["tiers"]:
        table.add_row(
            tier["tier"],
            tier["place"].partition("@")[2] or "shared",
            f"{tier['used_tokens']:,}",
            f"{tier['capacity_tokens']:,}",
            f"{tier['used_tokens'] / tier['capacity_tokens']:.0%}",
            "" if tier["used_bytes"] is None else f"{tier['used_bytes'] / 2**20:,.1f}",
            f"{tier['pinned_tokens']:,}",
            f"{tier['nodes']:,}",
            f"{tier['evictions']:,}",
        )
    if held["tiers"]:
        results.print(table)
    else:
        results.print("No tier has room: no KV is kept outside the engine's own cache.")
    ending = sum(load["retired"] for load in held["instances"])
    instances = f"{len(held['instances']) - ending} instances" + (f" ({ending} draining)" if ending else "")
    summary = f"policy {held['policy']}, {instances}, {held['running']} running, {held['queued']} queued"
    if held["planned_tokens"]:
        share = held["planned_cached_tokens"] / held["planned_tokens"]
        summary += f", {share:.0%} of prompt tokens planned from the cache"
    results.print(summary, highlight=False)


@app.command()
def tree(
    depth: Annotated[int, typer.Option(min=0, help="Depth, in documents.")] = 2,
    limit: Annotated[int, typer.Option(min=0, help="Most nodes to show; the most used come first.")] = 1000,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the knowledge tree, the most used documents first."""
    view = connect_as_admin(url, admin_key).cache_tree(depth, limit)
    if as_json:
        print(json.dumps(view))
        return
    shown = 0
    for namespace, nodes in view["namespaces"].items():
        drawn = Tree(f"namespace {namespace}")
        shown += _draw(drawn, nodes)
        results.print(drawn, highlight=False)
    results.print(f"{shown} of {view['nodes']} nodes", highlight=False)


@app.command()
def warm(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Past queries, one per line: plain text, or JSON as in the query log.", exists=True, dir_okay=False
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Use the stack's own query log.")] = False,
    collection: CollectionOption = None,
    tenant: TenantOption = None,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Warm the cache with the documents of past queries, on idle instances only.

    The exit code is 1 if none was warmed.
    """
    if log == (file is not None):
        raise typer.BadParameter("give either a file of queries or --log", param_hint="FILE")
    body: dict[str, Any] = {"collection": collection, "tenant": tenant, "log": log}
    if file is not None:
        body["queries"] = list(_queries(file))
    client = connect_as_admin(url, admin_key)
    job = _followed(client, client.warm_cache(body))
    if as_json:
        print(json.dumps(job))
    else:
        errors.print(
            f"{job['warmed']} document sequences warmed, {job['present']} already cached, {job['failed']} failed; "
            f"{job['computed_tokens']:,} tokens computed. "
            f"{job['unresolved']} of {job['queries']} queries found nothing.",
            highlight=False,
        )
        if job["last_error"]:
            errors.print(f"[red]last error:[/] {job['last_error']['message']}", highlight=False)
    if job["status"] == "failed":
        raise typer.Exit(1)


app.command()(precompute)


@app.command()
def pin(
    document: Annotated[str, typer.Argument(help="Id of the document.")],
    collection: CollectionOption = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Unpin the document.")] = False,
    tenant: TenantOption = None,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pin a cached document, which keeps it from eviction, as the first document behind the system prompt."""
    body = {"document_id": document, "collection": collection, "tenant": tenant, "pinned": not unpin}
    receipt = connect_as_admin(url, admin_key).pin(body)
    if as_json:
        print(json.dumps(receipt))
        return
    done = f"{'Unpinned' if unpin else 'Pinned'} {receipt['held']} of {receipt['chunks']} chunks"
    errors.print(f"{done} of {document}.", highlight=False, markup=False)


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evict everything from the cache, of all tenants, except what running queries use."""
    client = connect_as_admin(url, admin_key)
    if not yes:
        typer.confirm(f"Clear the whole cache of {client.url}?", abort=True, err=True)
    receipt = client.clear_cache()
    if as_json:
        print(json.dumps(receipt))
        return
    errors.print(f"{receipt['nodes']} nodes evicted.", highlight=False)


def _queries(file: Path) -> Iterator[Any]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if text.startswith(("{", '"')):
            try:
                yield json.loads(text)
            except ValueError as error:
                raise typer.BadParameter(f"line {number} is not JSON: {error}", param_hint="FILE") from error
        elif text:
            yield text


def _followed(client: StackClient, job: dict[str, Any]) -> dict[str, Any]:
    with StepBars() as show:
        while True:
            if job["queries"]:
                show("finding documents", job["resolved"] + job["unresolved"], job["queries"])
            if job["sequences"]:
                show("prefilling", job["warmed"] + job["present"] + job["failed"], job["sequences"])
            if job["status"] not in UNFINISHED:
                return job
            time.sleep(_POLL_S)
            job = client.warm_up(job["job_id"])


def _draw(drawn: Tree, nodes: list[dict[str, Any]]) -> int:
    """Add nodes and their children to a drawing; return how many were added."""
    shown = len(nodes)
    for node in nodes:
        marks = [mark for mark in ("pinned", "locked") if node[mark]]
        where = ", ".join([*node["places"], *marks]) or "not cached"
        branch = drawn.add(f"{node['content'][:12]}  {node['tokens']} tokens  used {node['frequency']:g}x  {where}")
        shown += _draw(branch, node["children"])
        if node["hidden"]:
            branch.add(f"and {node['hidden']} more below")
    return shown
