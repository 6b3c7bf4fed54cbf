"""Shared by all tests: repeatable property tests, which files are read and share a worker, and a real Redis.

``RAGTREE_TEST_SEARCH=1`` lets property tests search for new examples.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from redis_server import RedisServer
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import cachectl

# pytest-xdist gives its workers 80 columns, which a console created at import would keep.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)

_ENGINES = {"ray", "vllm"}
"""Markers of tests that start engines or stacks."""
_ONLY_ENGINES = "ray or vllm"
_NO_ENGINES = "not ray and not vllm"
_MARKED = re.compile(rf"\bmark\.({'|'.join(sorted(_ENGINES))})\b")
_ALL_MARKED = re.compile(rf"^pytestmark = .*{_MARKED.pattern}", re.MULTILINE)
_ONE_WORKER = ("tests/generator/", "tests/stack/shared_fake/", "tests/stack/shared_vllm/")

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("RAGTREE_TEST_SEARCH") else "repeatable")


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in its background jobs, and child processes inherit that. Tests send SIGINT to theirs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for compiled in Path(cachectl.__path__[0]).rglob("*.so"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            pytest.exit(f"{compiled.name} was compiled before its source changed: run `make setup`", returncode=2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have no test of the stage of ``make test``. Each worker would import hundreds of them."""
    asked = config.option.markexpr
    if asked not in (_ONLY_ENGINES, _NO_ENGINES) or collection_path.suffix != ".py":
        return None
    content = collection_path.read_text(encoding="utf-8")
    has_none = _ALL_MARKED.search(content) if asked == _NO_ENGINES else not _MARKED.search(content)
    return True if has_none else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose file does not name its marker. It would run in neither stage of ``make test``."""
    starting = {item.path for item in items if _ENGINES & {marker.name for marker in item.iter_markers()}}
    hidden = [str(path) for path in starting if not _MARKED.search(path.read_text(encoding="utf-8"))]
    if hidden:
        raise pytest.UsageError(f"name the marker of their tests in {', '.join(sorted(hidden))}")


class ByFileOrFolder(LoadScopeScheduling):
    """Hands the tests of a file to one worker, and all tests of a folder whose files share an engine or a stack."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next((folder for folder in _ONE_WORKER if nodeid.startswith(folder)), None)
        return folder or nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFileOrFolder:
    return ByFileOrFolder(config, log)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running, empty Redis for one test. The test may kill, stop, fill and restart it."""
    server = RedisServer().start()
    yield server
    server.stop()
