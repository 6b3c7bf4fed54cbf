"""Options that several benchmarks share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DEVICE = "a10g-7b"
DEFAULT_DATA = Path("../shared/data")

DataOption = Annotated[
    Path, typer.Option(envvar="RAGTREE_BENCH_DATA", help="The folder of question sets and traces.", show_default=True)
]
