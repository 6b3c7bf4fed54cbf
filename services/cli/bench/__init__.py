"""``ragtree bench``: one module per benchmark."""

import typer

from services.cli.bench.all import all_benchmarks
from services.cli.bench.auxiliary import auxiliary
from services.cli.bench.compose import compose
from services.cli.bench.controller import controller
from services.cli.bench.exactness import exactness
from services.cli.bench.follow_ups import follow_ups
from services.cli.bench.graph.fine_tuning import fine_tuning
from services.cli.bench.graph.graph import graph
from services.cli.bench.graph.graph_policies import graph_policies
from services.cli.bench.ingestion import ingestion
from services.cli.bench.orders import orders
from services.cli.bench.overhead import overhead
from services.cli.bench.policies import policies
from services.cli.bench.prompts import prompts
from services.cli.bench.recall import recall
from services.cli.bench.reorder import reorder
from services.cli.bench.replay import replay
from services.cli.bench.retrieval import retrieval
from services.cli.bench.scheduling import scheduling
from services.cli.bench.sharing.peer_faults import peer_faults
from services.cli.bench.sharing.sharing import sharing
from services.cli.bench.speculation import speculation
from services.cli.bench.sustained import sustained
from services.cli.bench.tiers import tiers
from services.cli.signals import ended_by_signals

app = typer.Typer(no_args_is_help=True)


@app.callback()
def bench(context: typer.Context) -> None:
    """Benchmarks. Each measures its baseline in the same run."""
    # A benchmark that is ended leaves no engine and no host memory behind.
    context.with_resource(ended_by_signals())


for command in (
    overhead,
    recall,
    ingestion,
    follow_ups,
    graph,
    graph_policies,
    retrieval,
    speculation,
    policies,
    scheduling,
    controller,
    exactness,
    compose,
    auxiliary,
    fine_tuning,
    tiers,
    replay,
    reorder,
    sustained,
    sharing,
    peer_faults,
    orders,
    prompts,
):
    app.command()(command)
app.command("all")(all_benchmarks)
