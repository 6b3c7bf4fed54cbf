"""``scripts/demo`` shows the whole stack from a cold start, and stops it again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import FAKE, processes_on

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).parents[3] / "scripts" / "demo"


def demo(data_dir):
    return subprocess.run(
        [SCRIPT, Path(sys.executable).parent, "1"],
        env={
            **os.environ,
            **FAKE,
            "RAGTREE_DATA_DIR": str(data_dir),
            "RAGTREE_SERVER__PORT": "0",
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.prove("scripts/demo", "services/", "retriever/demo_corpus/")
def test_the_demo_starts_ingests_answers_and_stops(tmp_path):
    ran = demo(tmp_path)
    assert ran.returncode == 0, ran.stderr
    ingested = re.search(r"(\d+) documents ingested, 0 unchanged, 0 skipped", ran.stderr)
    assert ingested, ran.stderr
    assert int(ingested[1]) > 3000
    _, _, shown = ran.stdout.partition("3. Asking: Which function returns the current working directory?\n")
    answer, _, after = shown.partition("Sources")
    assert answer.strip()
    sources, _, after = after.partition("first token after")
    assert "getcwd" in sources
    assert re.search(r"curl -N http://127\.0\.0\.1:\d+/query -H 'Content-Type: application/json'", after)
    assert processes_on(tmp_path) == []


def test_a_stack_that_runs_already_is_not_stopped_by_the_demo(fake_stack):
    ran = demo(fake_stack.folder)
    assert ran.returncode != 0
    assert "a stack already runs" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "2. Ingesting" not in ran.stdout
    assert fake_stack.is_ready()
