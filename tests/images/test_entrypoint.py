"""The image's entry point, health check and command run unchanged, without a container.

The engine is the fake one. If the tests run as root, the commands run as the image's unprivileged user. It cannot
write outside its folders, as in a container with a read-only root.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from compose_files import BASE, merged
from compose_spec import parse_duration
from dockerfiles import ROOT, environment, last

ENTRYPOINT = ROOT / "docker" / "entrypoint"
USER = 1000
START_S = 240
POLL_S = 0.2

_BECOME = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs")
# The virtual environment may be readable only by root. Then the plain user also gets the capability to read it.
_CAPABILITIES = ("-all", "-all,+dac_read_search")


@pytest.fixture(scope="module")
def plain_user():
    """Return the start of a command line that runs as an unprivileged user."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv"):
        for capabilities in _CAPABILITIES:
            prefix = [*_BECOME, *(f"--{kind}={capabilities}" for kind in ("inh-caps", "ambient-caps", "bounding-set"))]
            # Through `env`, because setpriv looks up its program with root's rights.
            probe = [*prefix, "env", sys.executable, "-c", "import typer"]
            if subprocess.run(probe, cwd=ROOT, capture_output=True, check=False).returncode == 0:
                return prefix
    pytest.skip("no plain user can read the virtual environment")


class Container:
    """The image's environment, with its folders moved below a temporary one."""

    def __init__(self, folder: Path, prefix: list[str], **variables: str) -> None:
        self.folder = folder
        self.prefix = prefix
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        moved = {name: self._moved(value) for name, value in environment("cpu").items() if name != "PATH"}
        self.environment = {
            **moved,
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "RAGTREE_SERVER__HOST": "127.0.0.1",
            "RAGTREE_SERVER__PORT": str(self.port),
            **variables,
        }
        folder.chmod(0o755)
        for name in ("data", "cache", "tmp"):
            (folder / name).mkdir()
            if prefix:
                os.chown(folder / name, USER, USER)

    def _moved(self, value: str) -> str:
        return f"{self.folder}{value}" if value.startswith(("/data", "/cache", "/tmp")) else value

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Run the entry point with this command."""
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [*self.prefix, ENTRYPOINT, *command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def is_healthy(self, *arguments: str) -> bool:
        command = [*self.prefix, ROOT / "docker" / "healthcheck", *arguments]
        code = subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode
        assert code in {0, 1}  # Docker reserves all other codes.
        return code == 0


class _AliveNotReady(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def container(plain_user):
    """Create containers, and remove their folders at the end."""
    folders = []

    def make(**variables: str) -> Container:
        # Not in pytest's folder, which only its owner can read.
        folders.append(Path(tempfile.mkdtemp(prefix="ragtree-image-")))
        return Container(folders[-1], plain_user, **variables)

    yield make
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def test_health_check_tells_alive_from_ready_and_uses_no_proxy(container):
    made = container(http_proxy="http://127.0.0.1:1")
    assert not made.is_healthy()
    with ThreadingHTTPServer(("127.0.0.1", made.port), _AliveNotReady) as gateway:
        Thread(target=gateway.serve_forever, daemon=True).start()
        assert made.is_healthy()
        assert made.is_healthy("healthz")
        assert not made.is_healthy("readyz")
        gateway.shutdown()


def test_entry_point_execs_the_command(container):
    started = container().start("sh", "-c", "exit 7")
    assert started.wait(10) == 7


def test_unwritable_folder_is_named(container):
    made = container()
    data = made.folder / "data"
    data.chmod(0o555)
    assert made.start("true").wait(10) == 1
    assert f"cannot write to {data}" in made.log()


def test_image_models_are_linked_into_the_cache_and_existing_ones_stay(container, tmp_path):
    made = container()
    image = made.folder / "image"
    shutil.copytree(ENTRYPOINT.parent, image / "docker", ignore=shutil.ignore_patterns("observability"))
    for model in ("shipped", "converted"):
        (image / "models" / model).mkdir(parents=True)
    models = made.folder / "cache" / "models"
    (models / "converted").mkdir(parents=True)
    (models / "of-another-image").symlink_to("/no/such/model")
    if os.geteuid() == 0:
        os.chown(models, USER, USER)
    for _ in range(2):
        subprocess.run([*made.prefix, image / "docker" / "entrypoint", "true"], env=made.environment, check=True)
        assert sorted(path.name for path in models.iterdir()) == ["converted", "shipped"]
    assert (models / "shipped").resolve() == image / "models" / "shipped"
    assert not (models / "converted").is_symlink()


@pytest.mark.prove("docker/", "services/")
@pytest.mark.ray
def test_container_starts_answers_and_stops_cleanly(container):
    made = container(
        RAGTREE_GENERATOR__ENGINE="fake",
        RAGTREE_RETRIEVER__EMBEDDER='{"kind": "hashing"}',
    )
    assert not made.is_healthy()
    started_at = time.time()
    started = made.start(*json.loads(last("cpu", "CMD")))
    try:
        _until(made, started, made.is_healthy)
        _until(made, started, lambda: made.is_healthy("readyz"))
        assert made.is_healthy()
        started.send_signal(signal.SIGTERM)
        grace_s = parse_duration(merged((BASE,))["services"]["ragtree"]["stop_grace_period"])
        assert started.wait(grace_s) == 0, made.log()
    finally:
        # The process group may outlive the entry point. Killing it also ends Ray.
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert not made.is_healthy()
    assert not made.is_healthy("readyz")
    assert "Permission denied" not in made.log()
    assert "Read-only" not in made.log()
    # All caches are in their folders, and home has only Ray's token.
    assert [path.name for path in (made.folder / "tmp").iterdir()] == [".ray"]
    assert sorted(path.name for path in made.folder.iterdir()) == ["cache", "data", "log", "tmp"]
    if os.geteuid() == 0:
        assert _written_since(started_at, ROOT, Path("/dev/shm"), Path("/var/tmp")) == []


def _until(container, process, condition):
    deadline = time.monotonic() + START_S
    while not condition():
        assert process.poll() is None, container.log()
        assert time.monotonic() < deadline, container.log()
        time.sleep(POLL_S)


def _written_since(start: float, *folders: Path) -> list[Path]:
    states = {path: path.lstat() for folder in folders for path in folder.rglob("*")}
    return [path for path, state in states.items() if state.st_uid == USER and state.st_mtime >= start]
