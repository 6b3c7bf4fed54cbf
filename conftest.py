"""Shared by all tests: repeatable property tests, which files are read and share a worker, and a real Redis.

``--changed-since COMMIT`` leaves out tests marked ``prove`` whose paths are as in that commit.

``RAGTREE_TEST_SEARCH=1`` lets property tests search for new examples.
"""

import gc
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from example_counts import examples
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
_ENGINE = re.compile(rf"\bmark\.({'|'.join(sorted(_ENGINES))})\b")
_ALL_ENGINE = re.compile(rf"^pytestmark = .*{_ENGINE.pattern}", re.MULTILINE)
_PROOF = re.compile(r"\bmark\.prove\b")
_ALL_PROOF = re.compile(rf"^pytestmark = .*{_PROOF.pattern}", re.MULTILINE)
_PROPERTY = re.compile(r"\bhypothesis\b")
_BESIDE = ("lab/", "contrib/")
"""Folders beside the product. ``make prove`` runs their tests, and so does CI."""
_WITHOUT_ENGINES, _WITH_ENGINES = "not prove and not ray and not vllm", "not prove and (ray or vllm)"
"""The two stages of ``make test``. An engine that starts beside tests that compute takes minutes."""
_HAS_NONE: dict[str, Callable[[str], bool]] = {
    _WITHOUT_ENGINES: lambda content: bool(_ALL_PROOF.search(content) or _ALL_ENGINE.search(content)),
    _WITH_ENGINES: lambda content: bool(_ALL_PROOF.search(content)) or not _ENGINE.search(content),
    "prove": lambda content: not _PROOF.search(content),
    "prove or hypothesis": lambda content: not _PROOF.search(content) and not _PROPERTY.search(content),
    "not ray and not vllm": lambda content: bool(_ALL_ENGINE.search(content)),
}
"""Whether a file has no test that is chosen: by ``make test``, ``.ci/run``, ``make prove`` and ``make unit``."""
_SEVERAL_ENGINES = "tests/stack/several_engines/"
"""Each file in there starts a stack of several engines. For two such stacks at a time, 24 GiB of memory are too few."""
_ONE_WORKER = ("tests/generator/", "tests/stack/shared_fake/", "tests/stack/shared_vllm/", _SEVERAL_ENGINES)
_OWN_ENGINES = "tests/generator/own_engines/"
"""Each file in there starts engines that it does not share."""

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=examples(100))
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("RAGTREE_TEST_SEARCH") else "repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--changed-since", metavar="COMMIT", help="of tests marked prove, run those with changed paths")


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in its background jobs, and child processes inherit that. Tests send SIGINT to theirs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for compiled in Path(cachectl.__path__[0]).rglob("*.so"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            pytest.exit(f"{compiled.name} was compiled before its source changed: run `make setup`", returncode=2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have no chosen test. Each worker would import hundreds of them."""
    chosen = config.option.markexpr
    if chosen not in _HAS_NONE or collection_path.suffix != ".py":
        return None
    if "prove" in chosen and collection_path.relative_to(config.rootpath).as_posix().startswith(_BESIDE):
        return True if chosen.startswith("not prove") else None
    return True if _HAS_NONE[chosen](collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a test whose file does not name its marker: files are chosen and handed out by what they name."""
    for item in items:
        if item.nodeid.startswith(_BESIDE) and item.get_closest_marker("prove") is None:
            item.add_marker(pytest.mark.prove(""))
    starting = {item.path for item in items if _ENGINES & {marker.name for marker in item.iter_markers()}}
    hidden = [str(path) for path in starting if not _ENGINE.search(path.read_text(encoding="utf-8"))]
    if hidden:
        raise pytest.UsageError(f"name the marker of their tests in {', '.join(sorted(hidden))}")
    if commit := config.option.changed_since:
        changed = _changed_since(commit)
        proved = [item for item in items if not _is_touched(item, changed)]
        config.hook.pytest_deselected(items=proved)
        items[:] = [item for item in items if item not in proved]


def pytest_collection_finish() -> None:
    """Exempt what was imported from collections: millions of objects, which each full one would look at."""
    gc.collect()
    gc.freeze()


def _changed_since(commit: str) -> list[str] | None:
    """The files that differ from this commit, or None if the clone does not have it."""
    diff = ["git", "diff", "--name-only", commit, "--"]
    ran = subprocess.run(diff, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)  # noqa: S603
    return ran.stdout.splitlines() if ran.returncode == 0 else None


def _is_touched(item: pytest.Item, changed: list[str] | None) -> bool:
    marks = list(item.iter_markers("prove"))
    paths = (*(path for mark in marks for path in mark.args), item.nodeid.partition("::")[0])
    return not marks or changed is None or any(file.startswith(paths) for file in changed)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.option.changed_since and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


class ByFileOrFolder(LoadScopeScheduling):
    """Hands the tests of a file to one worker, and all tests of a folder whose files share an engine or a stack.

    So it does with a folder whose files must not run at the same time.
    """

    def _split_scope(self, nodeid: str) -> str:
        shared = None
        if not nodeid.startswith(_OWN_ENGINES):
            shared = next((folder for folder in _ONE_WORKER if nodeid.startswith(folder)), None)
        return shared or nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFileOrFolder:
    return ByFileOrFolder(config, log)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running, empty Redis for one test. The test may kill, stop, fill and restart it."""
    server = RedisServer().start()
    yield server
    server.stop()
