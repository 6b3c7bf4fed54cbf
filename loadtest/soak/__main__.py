"""``python -m loadtest.soak``: what ``make soak`` runs."""

import typer

from loadtest.soak.soak import soak

typer.run(soak)
