"""The two streams of the command line: results on standard output, everything else on standard error."""

from rich.console import Console

results = Console()
errors = Console(stderr=True)
