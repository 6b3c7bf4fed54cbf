"""Kernel limits on running processes, which cause real errors of the operating system."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the files of this process, and of all its descendants, to ``size`` bytes.

    A larger file is refused in the middle of a write, as on a full disk.
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


@contextmanager
def address_space_left(size: int) -> Iterator[None]:
    """Limit this process's address space to ``size`` bytes more than it has now. A larger mapping is refused."""
    this = psutil.Process()
    before = this.rlimit(psutil.RLIMIT_AS)
    this.rlimit(psutil.RLIMIT_AS, (this.memory_info().vms + size, before[1]))
    try:
        yield
    finally:
        this.rlimit(psutil.RLIMIT_AS, before)
