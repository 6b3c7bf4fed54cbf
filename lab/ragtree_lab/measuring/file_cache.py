"""Takes files out of the operating system's file cache, so that the next read comes from the disk."""

import os
from pathlib import Path

from generator.tiers.node_file import evict


def evict_from_file_cache(folder: Path) -> bool:
    """Take all files below a folder out of the file cache; whether that worked.

    It does not on file systems that keep files in memory, such as tmpfs, or that do not say what they keep there.
    """
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    return all(_evict(file) for file in files)


def _evict(file: Path) -> bool:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        # Only clean pages can be dropped.
        os.fsync(descriptor)
        evict(descriptor)
        return _left_the_cache(descriptor)
    finally:
        os.close(descriptor)


def _left_the_cache(descriptor: int) -> bool:
    """Whether the first byte of an open file, which must not be empty, is known not to be in the file cache."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
