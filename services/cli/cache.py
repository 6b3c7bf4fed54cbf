"""``ragtree cache``: what the KV cache holds, and what is to be in it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree

from protocol.documents import UNFINISHED
from services.cli.connection import JsonOption, UrlOption, connect
from services.cli.output import StepBars, errors, results
from services.client import StackClient
from services.config import load_config

app = typer.Typer(help="The KV cache of documents; needs an administrator's key.", no_args_is_help=True)

AdminKeyOption = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar=["RAGTREE_GATEWAY__ADMIN_KEY", "RAGTREE_API_KEY"],
        help="An administrator's key, if the stack asks for one; for the stack that runs here, the configured one.",
        show_default=False,
    ),
]
CollectionOption = Annotated[str | None, typer.Option(help="The collection to use.  [default: default]")]
TenantOption = Annotated[str | None, typer.Option(help="Whose documents; by default the administrator's own.")]

_POLL_S = 0.2


@app.command()
def stats(url: UrlOption = None, admin_key: AdminKeyOption = None, as_json: JsonOption = False) -> None:
    """Print what each tier of the cache holds."""
    held = _connect(url, admin_key).cache_stats()
    if as_json:
        print(json.dumps(held))
        return
    table = Table("tier", "instance", "tokens", "of", "full", "MiB", "pinned", "nodes", "evictions")
    for column in table.columns[2:]:
        column.justify = "right"
    for tier in held["tiers"]:
        table.add_row(
            tier["tier"],
            tier["instance"] or "shared",
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
        results.print("No tier has room: nothing is kept outside of the engine's own cache.")
    ending = sum(load["retired"] for load in held["instances"])
    instances = f"{len(held['instances']) - ending} instances" + (f" ({ending} more ends)" if ending else "")
    summary = f"policy {held['policy']}, {instances}, {held['running']} running, {held['queued']} waiting"
    if held["planned_tokens"]:
        share = held["planned_cached_tokens"] / held["planned_tokens"]
        summary += f", {share:.0%} of prompt tokens planned from the cache"
    results.print(summary, highlight=False)


@app.command()
def tree(
    depth: Annotated[int, typer.Option(min=0, help="How many documents deep.")] = 2,
    limit: Annotated[int, typer.Option(min=0, help="How many nodes at most: the most used.")] = 1000,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the knowledge tree, the most used documents first."""
    view = _connect(url, admin_key).cache_tree(depth, limit)
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
            help="Past queries, one a line: plain text, or JSON as the query log has it.", exists=True, dir_okay=False
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Take the queries that the stack itself has noted.")] = False,
    collection: CollectionOption = None,
    tenant: TenantOption = None,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the documents of past queries into the cache, using only what is idle. The exit code is 1 if none came."""
    if log == (file is not None):
        raise typer.BadParameter("name a file of queries, or say --log", param_hint="FILE")
    body: dict[str, Any] = {"collection": collection, "tenant": tenant, "log": log}
    if file is not None:
        body["queries"] = list(_queries(file))
    client = _connect(url, admin_key)
    job = _followed(client, client.warm_cache(body))
    if as_json:
        print(json.dumps(job))
    else:
        errors.print(
            f"{job['warmed']} sequences of documents warmed up, {job['present']} were there, {job['failed']} failed; "
            f"{job['computed_tokens']:,} tokens computed. "
            f"{job['unresolved']} of {job['queries']} queries found nothing.",
            highlight=False,
        )
        if job["last_error"]:
            errors.print(f"[red]last error:[/] {job['last_error']['message']}", highlight=False)
    if job["status"] == "failed":
        raise typer.Exit(1)


@app.command()
def pin(
    document: Annotated[str, typer.Argument(help="The document's id.")],
    collection: CollectionOption = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Take the pin back.")] = False,
    tenant: TenantOption = None,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a document in the cache, first behind the system prompt, until it is unpinned; it must be there already."""
    body = {"document_id": document, "collection": collection, "tenant": tenant, "pinned": not unpin}
    receipt = _connect(url, admin_key).pin(body)
    if as_json:
        print(json.dumps(receipt))
        return
    done = f"{'Unpinned' if unpin else 'Pinned'} {receipt['held']} of {receipt['chunks']} chunks"
    errors.print(f"{done} of {document}.", highlight=False, markup=False)


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop everything from the cache, of all tenants, but what queries use at this moment."""
    client = _connect(url, admin_key)
    if not yes:
        typer.confirm(f"Drop the whole cache of {client.url}?", abort=True, err=True)
    receipt = client.clear_cache()
    if as_json:
        print(json.dumps(receipt))
        return
    errors.print(f"{receipt['nodes']} nodes dropped.", highlight=False)


def _connect(url: str | None, admin_key: str | None) -> StackClient:
    if url is None and admin_key is None:
        # Never for a stack that was named: it need not be one that the configuration is about.
        configured = load_config().gateway.admin_key
        admin_key = configured.get_secret_value() if configured is not None else None
    return connect(url, admin_key)


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
    """Add nodes to a drawing with all that is told of what lies behind them; how many there are."""
    shown = len(nodes)
    for node in nodes:
        marks = [mark for mark in ("pinned", "locked") if node[mark]]
        where = ", ".join([*node["places"], *marks]) or "nowhere"
        branch = drawn.add(f"{node['content'][:12]}  {node['tokens']} tokens  used {node['frequency']:g}x  {where}")
        shown += _draw(branch, node["children"])
        if node["hidden"]:
            branch.add(f"and {node['hidden']} more below")
    return shown
