"""Options that several benchmarks share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DEVICE = "a10g-7b"
DEFAULT_DATA = Path("../shared/data")

DataOption = Annotated[
    Path, typer.Option(envvar="RAGTREE_BENCH_DATA", help="The folder of question sets and traces.", show_default=True)
]

WorkloadOption = Annotated[str, typer.Option(help="The question set: a folder below --data.")]

PartTokensOption = Annotated[
    int, typer.Option(min=16, help="A document is consecutive paragraphs of at most so many tokens.")
]

TopKOption = Annotated[int, typer.Option(min=1, help="Documents of a prompt.")]

SeedOption = Annotated[int, typer.Option(help="Seed of all that is drawn.")]
