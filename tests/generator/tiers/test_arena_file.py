"""The arena's file: its layout, and that any trouble with it gets one sentence and leaves nothing behind."""

import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from kernel_limits import address_space_left, largest_file
from tier_contract import ARENA_PAGES, FINGERPRINT, PAGE_BYTES, PAGE_TOKENS, content_of, hand_out, held, make_node, read
from tier_contract import write as write_node
from tiers_under_test import ROOT, open_arena

from generator.tiers.arena import HostArena
from generator.tiers.arena_file import ArenaFile, Geometry
from protocol.errors import ConfigError
from protocol.kv import Paging

NODE = make_node(0)
SHARED_MEMORY = Path("/dev/shm")
FILE = "kv.arena"
GEOMETRY = Geometry(FINGERPRINT, PAGE_TOKENS, PAGE_BYTES, ARENA_PAGES)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_refused(folder: Path, sentence: str, param: str, page_bytes: int = PAGE_BYTES) -> None:
    """Assert that the arena cannot be opened, says why, and leaves the folder as it is."""
    before = files_in(folder)
    descriptors = psutil.Process().num_fds()
    with pytest.raises(ConfigError, match=sentence) as refused:
        open_arena(folder, page_bytes=page_bytes)
    assert refused.value.param == f"generator.kv.{param}"
    assert files_in(folder) == before
    assert psutil.Process().num_fds() == descriptors


def test_pages_lie_at_the_offsets_of_the_layout(opened, tmp_path):
    """A header of 4 KiB, another for each page, and pages at multiples of 4 KiB."""
    write_node(opened(), NODE, hand_out(NODE, 5))
    data = (tmp_path / FILE).read_bytes()
    for index, number in enumerate(hand_out(NODE).numbers):
        header = struct.unpack_from("<QQII", data, 4096 * (1 + number))
        assert header == (2, 5, index, 3)
        at = 4096 * (1 + 48) + 8192 * number
        assert data[at : at + PAGE_BYTES] == content_of(NODE)[index].tobytes()
    assert len(data) == 4096 * (1 + 48) + 8192 * 48


def test_the_file_is_the_only_one_and_belongs_to_its_user_alone(opened, tmp_path):
    opened()
    assert files_in(tmp_path) == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


# What an earlier process has left


@pytest.mark.parametrize("change", [{"fingerprint": "weights-2"}, {"page_bytes": 5001}, {"page_count": 40}])
def test_an_arena_of_another_geometry_is_replaced_and_stays_with_its_users(opened, tmp_path, change):
    old = opened()
    write_node(old, NODE)
    new = opened(**change)
    assert new.nodes() == []
    assert (read(old, NODE) == content_of(NODE)).all()
    write_node(old, make_node(1))
    assert new.nodes() == []


def _write(content: bytes):
    return lambda file: file.open("r+b").write(content)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda file: os.truncate(file, 0), id="killed after creating the file"),
        pytest.param(lambda file: os.truncate(file, 9000), id="truncated"),
        pytest.param(_write(bytes(4096)), id="killed before writing the geometry"),
        pytest.param(_write(GEOMETRY.encode()[:20].ljust(4096, b"\0")), id="killed while writing the geometry"),
        pytest.param(_write(b"RAGTREE1"), id="of an earlier format"),
        pytest.param(lambda file: file.write_bytes(b"notes"), id="foreign"),
    ],
)
def test_an_incomplete_or_foreign_file_is_replaced(opened, tmp_path, spoil):
    write_node(opened(), NODE)
    spoil(tmp_path / FILE)
    arena = opened()
    assert arena.nodes() == []
    write_node(arena, NODE)
    assert (read(opened(), NODE) == content_of(NODE)).all()
    assert files_in(tmp_path) == [FILE]


# What the machine refuses


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="there is no /dev/shm")
def test_too_little_memory_is_an_error_at_the_start():
    """Asks the real /dev/shm for twice its size, which it refuses before it reserves any."""
    whole = os.statvfs(SHARED_MEMORY)
    pages = 2 * whole.f_blocks * whole.f_frsize // 4096
    name = f"ragtree-test-{os.getpid()}.arena"
    with pytest.raises(ConfigError, match="--shm-size") as refused:
        HostArena(SHARED_MEMORY / name, FINGERPRINT, Paging(PAGE_TOKENS), 4096, pages)
    assert refused.value.param == "generator.kv.host_gib"
    assert not list(SHARED_MEMORY.glob(f"{name}*"))


def test_a_file_that_the_kernel_refuses_leaves_nothing(tmp_path):
    with largest_file(100_000):
        assert_refused(tmp_path, "cannot reserve .* bytes of host memory in .*: File too large", "host_gib")


def test_memory_that_cannot_be_mapped_leaves_nothing(tmp_path):
    with address_space_left(64 << 20):
        assert_refused(tmp_path, "Cannot allocate memory", "host_gib", page_bytes=4 << 20)


def test_memory_that_cannot_be_mapped_stays_as_another_process_made_it(opened, tmp_path):
    arena = opened(page_bytes=4 << 20)
    with address_space_left(64 << 20):
        assert_refused(tmp_path, "Cannot allocate memory", "host_gib", page_bytes=4 << 20)
    opened(page_bytes=4 << 20)
    arena.close()
    assert files_in(tmp_path) == [FILE]


IN_A_SMALL_MEMORY = """
import subprocess, sys
from pathlib import Path
from test_arena_file import assert_refused
from tiers_under_test import open_arena

folder = Path(sys.argv[1])
def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", folder], check=True)
mount("-o", "size=256k")
assert_refused(folder, "cannot reserve 593920 bytes .*: No space left on device. Lower generator.kv", "host_gib")
open_arena(folder, page_count=10).close()
(folder / "kv.arena").unlink()
mount("-o", "remount,ro")
assert_refused(folder, "cannot use .*kv.arena as host memory: Read-only file system. Set", "host_dir")
print("passed")
"""


def test_a_small_memory_and_a_read_only_one(tmp_path):
    """A real file system of 256 KiB, in a mount namespace that needs no privileges on most machines."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounts in a user namespace")
    here = Path(__file__).parent
    search = os.pathsep.join(map(str, [ROOT, here, *here.parents[:2]]))
    done = subprocess.run(
        [*unshare, sys.executable, "-c", IN_A_SMALL_MEMORY, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.stdout.endswith("passed\n"), done.stderr


def test_a_path_that_cannot_hold_a_file_is_a_config_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use .* as host memory: (Not a directory|File exists)"):
        open_arena(tmp_path / "file")
    assert files_in(tmp_path) == ["file"]


# Another user's traps


def test_another_users_file_is_refused(opened, tmp_path, monkeypatch):
    """Any user can create a file in shared memory, and could read and forge tenants' KV through it."""
    opened()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(tmp_path, "it belongs to another user", "host_dir")


@pytest.mark.parametrize(
    ("trap", "sentence"),
    [
        (lambda path: path.symlink_to("elsewhere"), "it is a symbolic link"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "it is not a regular file"),
    ],
)
def test_what_is_not_a_file_is_refused(tmp_path, trap, sentence):
    (tmp_path / "elsewhere").write_text("a file of the user")
    trap(tmp_path / FILE)
    assert_refused(tmp_path, sentence, "host_dir")
    assert (tmp_path / "elsewhere").read_text() == "a file of the user"


# Sharing


def test_a_file_that_is_deleted_while_another_process_waits_for_it_is_made_again(opened, tmp_path, monkeypatch):
    opened()
    open_file = ArenaFile._open

    def lose_it_once_opened(file):
        descriptor = open_file(file)
        monkeypatch.undo()
        (tmp_path / FILE).unlink()
        return descriptor

    monkeypatch.setattr(ArenaFile, "_open", lose_it_once_opened)
    second = opened()
    write_node(second, NODE)
    assert held(opened()) == {NODE.key}


def test_instances_that_come_and_go_at_once_share_one_file(tmp_path):
    apart = []

    def come_and_go(number: int) -> None:
        for turn in range(40):
            file = ArenaFile(tmp_path / FILE, GEOMETRY)
            if not os.path.samestat(os.fstat(file._descriptor), (tmp_path / FILE).stat()):
                apart.append((number, turn))
            file.close()

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert apart == []
    assert files_in(tmp_path) == [FILE]
