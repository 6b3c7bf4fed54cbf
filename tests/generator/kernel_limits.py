"""Limits of the kernel on processes that run: real errors of the operating system, without a machine that is broken."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process, or of any that it has started, grow beyond ``size`` bytes.

    What would is refused in the middle of a write, as on a full disk.
    """
    this = psutil.Process()
    limits = [(process, process.rlimit(psutil.RLIMIT_FSIZE)) for process in (this, *this.children(recursive=True))]
    try:
        for process, (_, hard) in limits:
            process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        for process, before in limits:
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, before)
