"""Signals that end an examination in order: what it has opened is closed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal end the block with an exception, so that it is cleaned up.

    This also holds while an engine loads, which blocks the event loop. Signals that are ignored stay ignored.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        # Not a KeyboardInterrupt, which vLLM swallows while it starts.
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed_by_signals() -> Iterator[None]:
    """Ignore these signals during the block. Wrappers often forward a Ctrl-C that the terminal has sent already."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
