"""Puts the commands of ``ragtree`` together.

Other packages add commands by entry points of the group ``ragtree.commands``, which name a ``typer.Typer``. The
laboratory adds ``ragtree bench``.
"""

import sys
from importlib.metadata import entry_points

import typer
from rich.markup import escape

from protocol.errors import RagtreeError
from protocol.logs import configure_logging
from services.cli import adapters, cache, config, doctor, evaluate, gate, graph, ingest, models, search, stack
from services.cli.output import errors

app = typer.Typer(
    help="A RAG serving stack that prefills each piece of knowledge once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(stack.up)
app.command()(stack.join)
app.command()(stack.down)
app.command()(stack.status)
app.command()(doctor.doctor)
app.command()(ingest.ingest)
app.command()(search.query)
app.command("eval")(evaluate.evaluate)
app.command()(models.models)
app.command()(search.search)
app.add_typer(adapters.app, name="adapters")
app.add_typer(cache.app, name="cache")
app.add_typer(config.app, name="config")
app.add_typer(gate.app, name="gate")
app.add_typer(graph.app, name="graph")
for added in entry_points(group="ragtree.commands"):
    app.add_typer(added.load(), name=added.name)


def main() -> None:
    """Run one command. Our own errors are one line, not a stack trace."""
    # Standard output is for results. `up` sets a lower level itself.
    configure_logging("warning")
    try:
        app()
    except RagtreeError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
