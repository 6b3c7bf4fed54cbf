"""The handler of signals that end a foreground process as Ctrl-C does."""

from types import FrameType


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt
