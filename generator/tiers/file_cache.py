"""The operating system's file cache: memory in which it keeps what was read from files or written to them."""

import os


def evict(descriptor: int) -> None:
    """Take an open file out of the file cache, as far as it is synced and the file system allows it.

    File systems that keep their files in memory, such as tmpfs, do not.
    """
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def is_cached(descriptor: int) -> bool | None:
    """Whether the first byte of an open file, which must not be empty, is in the file cache. None if unknown."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
