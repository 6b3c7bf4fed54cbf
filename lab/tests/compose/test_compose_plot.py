"""The picture of ``bench compose``."""

from examine.composing.rows import FULL, ComposeRow, Interval
from ragtree_lab.compose.plot import draw


def row(task: str, method: str, share: float, actual: float) -> ComposeRow:
    return ComposeRow("m", method, task, share, actual, 10, 0.5, 0.6, Interval(-0.2, 0.1), 0.9, 0.1, 0.3)


def test_a_picture_of_several_tasks_and_methods_is_written(tmp_path):
    rows = [
        row(task, *way)
        for task in ("multi-key", "squad")
        for way in ((FULL, 0.0, 1.0), ("none", 0.0, 0.0), ("query", 0.2, 0.19), ("query", 0.1, 0.1))
    ]
    draw(rows, tmp_path / "compose.svg")
    text = (tmp_path / "compose.svg").read_text()
    assert text.count("<!-- query -->") == 1
    assert "squad, 10 questions" in text
