"""An environment with the client libraries of requirements/clients.lock, apart from the project's own."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock
from platformdirs import user_cache_path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "clients.lock"
_UV = Path(sys.executable).with_name("uv")
_UNREACHABLE = ("error sending request", "failed to fetch", "dns error", "connect", "timed out")


def clients_python() -> Path:
    """The Python of the environment, which is built once for each lock and each version of Python.

    Skips the test if the package index cannot be reached, but fails it in CI.
    """
    wanted = sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = user_cache_path("ragtree") / "test-clients" / wanted
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder / ".installed"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            _run("venv", "--clear", "--python", sys.executable, str(folder))
            _run("pip", "install", "--no-deps", "--python", str(folder / "bin" / "python"), "--requirement", str(LOCK))
            done.touch()
    return folder / "bin" / "python"


def _run(*arguments: str) -> None:
    ran = subprocess.run([_UV, "--quiet", *arguments], capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode == 0:
        return
    if any(sign in ran.stderr.lower() for sign in _UNREACHABLE) and not os.environ.get("CI"):
        pytest.skip(f"the package index cannot be reached: {ran.stderr.strip()[-200:]}")
    pytest.fail(f"uv {arguments[0]} failed: {ran.stderr}")
