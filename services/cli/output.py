"""The two streams of the command line: results on standard output, everything else on standard error."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

results = Console()
errors = Console(stderr=True)


def progress_bar() -> Progress:
    """What long work shows: its name, a bar, how many of how many, and for how long already."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=errors
    )
