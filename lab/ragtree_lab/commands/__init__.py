"""``ragtree bench``: one module per benchmark."""

import typer

from examine.signals import ended_by_signals
from ragtree_lab.commands.all import all_benchmarks
from ragtree_lab.commands.auxiliary import auxiliary
from ragtree_lab.commands.compose import compose
from ragtree_lab.commands.controller import controller
from ragtree_lab.commands.engines.exactness import exactness
from ragtree_lab.commands.engines.families import families
from ragtree_lab.commands.engines.fixed_costs import fixed_costs
from ragtree_lab.commands.engines.tiers import tiers
from ragtree_lab.commands.follow_ups import follow_ups
from ragtree_lab.commands.graph.fine_tuning import fine_tuning
from ragtree_lab.commands.graph.graph import graph
from ragtree_lab.commands.graph.graph_policies import graph_policies
from ragtree_lab.commands.ingestion import ingestion
from ragtree_lab.commands.orders import orders
from ragtree_lab.commands.overhead import overhead
from ragtree_lab.commands.policies import policies
from ragtree_lab.commands.prompts import prompts
from ragtree_lab.commands.recall import recall
from ragtree_lab.commands.reorder import reorder
from ragtree_lab.commands.replay import replay
from ragtree_lab.commands.retrieval import retrieval
from ragtree_lab.commands.scheduling import scheduling
from ragtree_lab.commands.sharing.peer_faults import peer_faults
from ragtree_lab.commands.sharing.sharing import sharing
from ragtree_lab.commands.speculation import speculation
from ragtree_lab.commands.sustained import sustained

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
    families,
    compose,
    auxiliary,
    fine_tuning,
    tiers,
    fixed_costs,
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
