"""Where a doctor works: temporary folders beside the user's own places for KV, and processes that end with it."""

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from examine.doctor.engine_slot import EngineLog
from examine.signals import undisturbed_by_signals
from generator.settings import KvSettings
from protocol.errors import ConfigError

_ENDS_BY_ITSELF = "resource_tracker"
_RANKS = "vllm_dist_"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # nosec B108  # only what was named after our files is deleted
_END_S = 10.0


class Workplace:
    """Folders in the places that ``kv`` names, on the same file systems, but never among the user's own files.

    ``temporary`` is also where libraries put their temporary files. ``host`` is for host memory and ``disk`` for KV on
    disk. They are None if they cannot be made; ``host_error`` and ``disk_error`` say why. The engines' output is added
    to the file ``log``, by default a temporary one.

    Use it as a context manager: at its end, child processes begun since are ended, and the folders are deleted. A
    signal does not interrupt that. Raises ConfigError if there is no place for temporary files.
    """

    def __init__(self, kv: KvSettings, log: Path | None = None, shared_memory: Path = _SHARED_MEMORY) -> None:
        self._kv = kv
        self._log = log
        self._shared_memory = shared_memory
        self._folders: list[WorkFolder] = []
        self._before: set[psutil.Process] = set()
        self._replaced: tuple[str | None, str | None] | None = None
        self.host: Path | None = None
        self.disk: Path | None = None
        self.host_error = ""
        self.disk_error = ""

    def __enter__(self) -> "Workplace":
        self._before = set(psutil.Process().children(recursive=True))
        # For an interrupt that comes between the end of the block and the first line of the clean-up.
        atexit.register(self.close)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End child processes and delete the folders. Idempotent."""
        with undisturbed_by_signals():
            self._end_children()
            self._free_shared_memory()
            while self._folders:
                self._folders.pop().remove()
            self._restore()
            atexit.unregister(self.close)

    def _open(self) -> None:
        try:
            self.temporary = self._made(Path(tempfile.gettempdir()))
        except OSError as error:
            raise ConfigError(f"there is no place for temporary files: {error.strerror}") from error
        self.log = EngineLog(self._log or self.temporary / "engines.log")
        # Libraries read the first, child processes the second.
        self._replaced = tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir = os.environ["TMPDIR"] = str(self.temporary)
        try:
            self.host = self._made(self._kv.host_dir)
        except OSError as error:
            self.host_error = f"generator.kv.host_dir {self._kv.host_dir} cannot be written to: {error.strerror}"
        if self._kv.disk_dir is None:
            return
        try:
            self.disk = self._made(self._kv.disk_dir)
        except OSError as error:
            self.disk_error = f"the folder for KV on disk {self._kv.disk_dir} cannot be written to: {error.strerror}"

    def _made(self, place: Path) -> Path:
        """Make a folder in ``place``, or in the nearest parent that exists."""
        there = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
        self._folders.append(WorkFolder(there))
        return self._folders[-1].path

    def _end_children(self) -> None:
        begun = [child for child in psutil.Process().children(recursive=True) if child not in self._before]
        ours = [child for child in begun if not _ends_by_itself(child)]
        for child in ours:
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        _, alive = psutil.wait_procs(ours, timeout=_END_S)
        for child in alive:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(alive, timeout=_END_S)

    def _free_shared_memory(self) -> None:
        """Delete the memory that an engine's ranks share: vLLM names it after a temporary file, and may leave it."""
        for folder in self._folders:
            for file in folder.path.glob(f"{_RANKS}*"):
                for memory in self._shared_memory.glob(f"{file.name}-*"):
                    memory.unlink(missing_ok=True)

    def _restore(self) -> None:
        if self._replaced is None:
            return
        tempfile.tempdir, folder = self._replaced
        self._replaced = None
        if folder is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = folder


def _ends_by_itself(child: psutil.Process) -> bool:
    """Return whether this is multiprocessing's tracker: it ends with its parent, and then deletes shared memory."""
    with suppress(psutil.NoSuchProcess):
        return any(_ENDS_BY_ITSELF in part for part in child.cmdline())
    return True


_PREFIX = "ragtree-doctor-"


class WorkFolder:
    """A new folder at ``path`` below ``parent``, which its process holds locked until ``remove``.

    The kernel releases the lock with the process, so a folder that is not locked is a leftover of a killed one. Such
    folders of the same user are deleted first. Raises OSError if the folder cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        _sweep(parent)
        self.path, self._descriptor = _made(parent)

    def remove(self) -> None:
        """Delete the folder with all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _made(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have taken it for a leftover before it was locked.
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
