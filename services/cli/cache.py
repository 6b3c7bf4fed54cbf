"""``ragtree cache``: shows and manages the KV cache."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree

from protocol.documents import UNFINISHED
from protocol.errors import RagtreeError, UnknownJob
from services.cli.connection import AdminKeyOption, JsonOption, TenantOption, UrlOption, connect_as_admin
from services.cli.output import StepBars, errors, results
from services.client import RequestFailed, StackClient, StackUnreachable

app = typer.Typer(help="Show and manage the KV cache. Needs an administrator's key.", no_args_is_help=True)
CollectionOption = Annotated[str | None, typer.Option(help="Collection to use.  [default: default]")]

_POLL_S = 0.2
_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended."""


class JobLost(RagtreeError):
    """The gateway no longer answers for a job that it has started."""

    code = "job_lost"


@app.command()
def stats(url: UrlOption = None, admin_key: AdminKeyOption = None, as_json: JsonOption = False) -> None:
    """Show the contents of each tier of the cache."""
    held = connect_as_admin(url, admin_key).cache_stats()
    if as_json:
        print(json.dumps(held))
        return
    # An engine without KV of its own, such as the fake one, says nothing about sizes.
    in_bytes = all(tier["used_bytes"] is not None for tier in held["tiers"])
    table = Table("tier", "at", "MiB" if in_bytes else "tokens", "of", "full", "pinned", "nodes", "evictions")
    for column in table.columns[2:]:
        column.justify = "right"
    for tier in held["tiers"]:
        table.add_row(
            tier["tier"],
            tier["place"].partition("@")[2] or "shared",
            *(_amount(tier, tokens, in_bytes) for tokens in ("used_tokens", "capacity_tokens")),
            f"{tier['used_tokens'] / tier['capacity_tokens']:.0%}",
            _amount(tier, "pinned_tokens", in_bytes),
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
    results.print(summary)


def _amount(tier: Mapping[str, Any], tokens: str, in_bytes: bool) -> str:
    """The size of so many of a tier's tokens, in MiB or in tokens."""
    if not in_bytes:
        return f"{tier[tokens]:,}"
    return f"{tier[tokens] / tier['capacity_tokens'] * tier['capacity_bytes'] / 2**20:,.1f}"


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
        results.print(drawn)
    results.print(f"{shown} of {view['nodes']} nodes")


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
    job = _followed(client.warm_cache(body), client.warm_up, _show_warming)
    if as_json:
        print(json.dumps(job))
    else:
        errors.print(
            f"{job['warmed']} document sequences warmed, {job['present']} already cached, {job['failed']} failed; "
            f"{job['computed_tokens']:,} tokens computed. "
            f"{job['unresolved']} of {job['queries']} queries found nothing.",
        )
        if job["last_error"]:
            errors.print(f"[red]last error:[/] {job['last_error']['message']}")
    if job["status"] == "failed":
        raise typer.Exit(1)


@app.command()
def precompute(
    collection: Annotated[
        str | None, typer.Option(help="Collection to use; by default all of the tenant's.", show_default=False)
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First compute this number of the query log's most frequent document sequences, each as a whole.",
            show_default=False,
        ),
    ] = None,
    donors: Annotated[
        bool,
        typer.Option(
            "--donors/--no-donors",
            help="Compute every chunk, after the first one of its document, so that prompts can be composed of them.",
        ),
    ] = True,
    follow: Annotated[
        str | None, typer.Option(metavar="JOB", help="Follow this running job instead of starting one.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option(metavar="JOB", help="Cancel this job. What it has computed stays.")
    ] = None,
    tenant: TenantOption = None,
    url: UrlOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the KV of documents ahead of time, on idle instances only, as far as the tiers have room.

    Nothing is evicted for it. Documents that do not fit are skipped and counted; shorter ones may fit. Nothing that is
    cached is computed again: the same command continues a job that has ended early, such as with its gateway. Ctrl-C
    leaves the job running. The exit code is 1 if the job failed or was cancelled.
    """
    if (follow or cancel) and ((follow and cancel) or collection or top or tenant or not donors):
        raise typer.BadParameter(
            "give it without --collection, --top, --no-donors, --tenant and each other", param_hint="--follow, --cancel"
        )
    if top is None and not donors:
        raise typer.BadParameter("give --top as well, or there is nothing to compute", param_hint="--no-donors")
    client = connect_as_admin(url, admin_key)
    if cancel:
        job = client.cancel_precomputation(cancel)
    elif follow:
        job = _precomputed(client, client.precomputation(follow))
    else:
        body = {"collection": collection, "tenant": tenant, "top": top, "donors": donors}
        job = _precomputed(client, client.precompute(body))
    if as_json:
        print(json.dumps(job))
    else:
        _report(job)
    if job["status"] == "failed" or (job["status"] == "cancelled" and not cancel):
        raise typer.Exit(1)


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
    """Pin a cached document, which keeps it from eviction, as the first document after the system prompt."""
    body = {"document_id": document, "collection": collection, "tenant": tenant, "pinned": not unpin}
    receipt = connect_as_admin(url, admin_key).pin(body)
    if as_json:
        print(json.dumps(receipt))
        return
    done = f"{'Unpinned' if unpin else 'Pinned'} {receipt['held']} of {receipt['chunks']} chunks"
    errors.print(f"{done} of {document}.", markup=False)


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
    errors.print(f"{receipt['nodes']} nodes evicted.")


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


def _followed(
    job: dict[str, Any], state: Callable[[str], dict[str, Any]], show_job: Callable[[StepBars, dict[str, Any]], None]
) -> dict[str, Any]:
    """Show a job's progress until it ends, and return its last state."""
    with StepBars() as show:
        while True:
            if job["queries"]:
                show("finding documents", job["resolved"] + job["unresolved"], job["queries"])
            show_job(show, job)
            if job["status"] not in UNFINISHED:
                return job
            time.sleep(_POLL_S)
            job = state(job["job_id"])


def _show_warming(show: StepBars, job: dict[str, Any]) -> None:
    if job["sequences"]:
        show("prefilling", job["warmed"] + job["present"] + job["failed"], job["sequences"])


def _precomputed(client: StackClient, job: dict[str, Any]) -> dict[str, Any]:
    """Show a job's progress until it ends. Raises JobLost if the gateway has ended or forgotten it."""
    try:
        return _followed(job, client.precomputation, _show_precomputing)
    except KeyboardInterrupt:
        errors.print(
            f"The job goes on in the gateway. Follow it with `ragtree cache precompute --follow {job['job_id']}`, "
            f"end it with `ragtree cache precompute --cancel {job['job_id']}`.",
        )
        raise typer.Exit(_INTERRUPTED) from None
    except (RequestFailed, StackUnreachable) as error:
        if isinstance(error, RequestFailed) and error.error.get("code") != UnknownJob.code:
            raise
        raise JobLost(f"{error}. A job ends with its gateway; the same command continues it.") from error


def _show_precomputing(show: StepBars, job: dict[str, Any]) -> None:
    for step, prefills in (("sequences", job["sequences"]), ("chunks", job["chunks"])):
        if prefills["total"]:
            show(step, prefills["total"] - _left(prefills), prefills["total"])


def _left(prefills: dict[str, int]) -> int:
    return prefills["total"] - sum(prefills[outcome] for outcome in ("computed", "present", "no_room", "failed"))


def _report(job: dict[str, Any]) -> None:
    if job["status"] == "no_room":
        errors.print("The tiers had no room for everything. What did not fit was skipped.")
    if job["status"] == "cancelled":
        errors.print("The job was cancelled. The same command continues it.")
    for kind, prefills in (("document sequences", job["sequences"]), ("chunks", job["chunks"])):
        if prefills["total"]:
            errors.print(
                f"{prefills['computed']:,} {kind} computed, {prefills['present']:,} already cached, "
                f"{prefills['no_room']:,} without room, {prefills['failed']:,} failed, {_left(prefills):,} not tried.",
            )
    done = f"{job['documents_done']:,} of {job['documents']:,} documents done"
    errors.print(f"{job['computed_tokens']:,} tokens computed; {done}.")
    if job["unresolved"]:
        errors.print(f"{job['unresolved']:,} of {job['queries']:,} queries found nothing.")
    if job["last_error"]:
        errors.print(f"[red]last error:[/] {job['last_error']['message']}")


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
