"""An examination by the gate ends in order, so that its engine and its host memory go with it."""

import os
import signal

from typer.testing import CliRunner

from examine.gate.examination import FactExamination
from services.cli.app import app

CLOSED: list[str] = []


async def ended(self: FactExamination, questions: int, seed: int) -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        # The signal is handled before the next lines.
        raise AssertionError("the signal has no handler")
    finally:
        CLOSED.append("engine")


def test_sigterm_ends_an_examination_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGTREE_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(FactExamination, "report", ended)
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, ["gate", "run", "--method", "dependency"])
    assert (result.exit_code, CLOSED) == (128 + signal.SIGTERM, ["engine"])
    assert signal.getsignal(signal.SIGTERM) is before
