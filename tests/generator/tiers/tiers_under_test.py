"""The tiers as the tests, and the processes that they start, open them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tier_contract import ARENA_PAGES, FINGERPRINT, PAGE_BYTES, PAGE_TOKENS

from generator.tiers.arena import HostArena
from generator.tiers.disk import DiskTier
from generator.tiers.object_requests import ObjectRequests
from generator.tiers.object_store import ObjectStoreTier
from protocol.kv import Paging

ROOT = Path(__file__).parents[3]


def open_arena(folder: Path, fingerprint=FINGERPRINT, page_bytes=PAGE_BYTES, page_count=ARENA_PAGES) -> HostArena:
    return HostArena(folder / "kv.arena", fingerprint, Paging(PAGE_TOKENS), page_bytes, page_count)


def open_disk(folder: Path, fingerprint=FINGERPRINT, max_bytes=10**7, file_cache=True, machine=None) -> DiskTier:
    return DiskTier(folder, fingerprint, Paging(PAGE_TOKENS), PAGE_BYTES, max_bytes, file_cache, machine)


def open_objects(requests: ObjectRequests, fingerprint=FINGERPRINT, max_bytes=10**8) -> ObjectStoreTier:
    return ObjectStoreTier(requests, fingerprint, Paging(PAGE_TOKENS), PAGE_BYTES, max_bytes)


class WritingProcess:
    """Another process that is writing a node."""

    def __init__(self, kind: str, folder: Path, number: int, stamp: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("tier_process.py"), kind, folder, str(number), str(stamp)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *Path(__file__).parents[1:3]]))},
        )
        self._expect("begun")

    def publish(self) -> None:
        """Let it publish the node."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._expect("published")

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _expect(self, word: str) -> None:
        assert self._process.stdout.readline() == f"{word}\n"


@contextmanager
def writing_process(kind: str, folder: Path, number: int = 0, stamp: int = 1) -> Iterator[WritingProcess]:
    process = WritingProcess(kind, folder, number, stamp)
    try:
        yield process
    finally:
        process.kill()
