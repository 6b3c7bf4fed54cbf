"""``ragtree cache precompute``: computes documents' KV before anybody asks for them."""

import json
import time
from typing import Annotated, Any

import typer

from protocol.documents import UNFINISHED
from protocol.errors import RagtreeError, UnknownJob
from services.cli.connection import AdminKeyOption, JsonOption, TenantOption, UrlOption, connect_as_admin
from services.cli.output import StepBars, errors
from services.client import RequestFailed, StackClient, StackUnreachable

_POLL_S = 0.5
_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended."""


class JobLost(RagtreeError):
    """The gateway no longer answers for a job that it has started."""

    code = "job_lost"


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
            help="Compute every chunk, behind the first one of its document, so that prompts can be composed of them.",
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

    Nothing is evicted for it. What does not fit is skipped and counted; shorter documents may fit. Nothing that is
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
        job = _followed(client, client.precomputation(follow))
    else:
        body = {"collection": collection, "tenant": tenant, "top": top, "donors": donors}
        job = _followed(client, client.precompute(body))
    if as_json:
        print(json.dumps(job))
    else:
        _report(job)
    if job["status"] == "failed" or (job["status"] == "cancelled" and not cancel):
        raise typer.Exit(1)


def _followed(client: StackClient, job: dict[str, Any]) -> dict[str, Any]:
    """Show a job's progress until it ends. Raises JobLost if the gateway has ended or forgotten it."""
    job_id = job["job_id"]
    try:
        with StepBars() as show:
            while True:
                _show(show, job)
                if job["status"] not in UNFINISHED:
                    return job
                time.sleep(_POLL_S)
                job = client.precomputation(job_id)
    except KeyboardInterrupt:
        errors.print(
            f"The job goes on in the gateway. Follow it with `ragtree cache precompute --follow {job_id}`, "
            f"end it with `ragtree cache precompute --cancel {job_id}`.",
            highlight=False,
        )
        raise typer.Exit(_INTERRUPTED) from None
    except (RequestFailed, StackUnreachable) as error:
        if isinstance(error, RequestFailed) and error.error.get("code") != UnknownJob.code:
            raise
        raise JobLost(f"{error}. A job ends with its gateway; the same command continues it.") from error


def _show(show: StepBars, job: dict[str, Any]) -> None:
    if job["queries"]:
        show("finding documents", job["resolved"] + job["unresolved"], job["queries"])
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
                highlight=False,
            )
    done = f"{job['documents_done']:,} of {job['documents']:,} documents done"
    errors.print(f"{job['computed_tokens']:,} tokens computed; {done}.", highlight=False)
    if job["unresolved"]:
        errors.print(f"{job['unresolved']:,} of {job['queries']:,} queries found nothing.", highlight=False)
    if job["last_error"]:
        errors.print(f"[red]last error:[/] {job['last_error']['message']}", highlight=False)
