import subprocess
import sys
from uuid import UUID

import pytest
from obstore.store import LocalStore, MemoryStore
from s3_server import failing
from structlog.testing import capture_logs
from tiers_under_test import ROOT, open_disk, open_objects

from generator.tiers.disk_identity import folder_identity, store_identity
from generator.tiers.object_requests import ObjectRequests


@pytest.fixture(params=["memory", "folder", "s3"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return LocalStore(tmp_path)
    s3 = request.getfixturevalue("s3")
    return s3.open(s3.new_bucket())._store


def test_a_folder_keeps_its_identity(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    identity = folder_identity(tmp_path / "one")
    assert str(UUID(identity)) == identity
    assert folder_identity(tmp_path / "one") == identity
    assert folder_identity(tmp_path / "other") != identity
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["disk-id"]


def test_a_folder_has_the_same_identity_wherever_it_is_mounted(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    one, other = open_disk(tmp_path / "here"), open_disk(tmp_path / "there", "weights-2")
    assert one.identity == other.identity != ""


IN_A_PROCESS = """
import sys
from pathlib import Path
from generator.tiers.disk_identity import folder_identity
print("ready", flush=True)
sys.stdin.readline()
print(folder_identity(Path(sys.argv[1])))
"""


def test_processes_that_start_at_once_agree(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_PROCESS, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    identities = {process.communicate()[0].strip() for process in processes}
    assert len(identities) == 1
    assert str(UUID(identities.pop()))
    assert [path.name for path in tmp_path.iterdir()] == ["disk-id"]


def test_the_identity_of_a_process_that_was_faster_stays(tmp_path, monkeypatch):
    """It appears between the look for the file and its creation."""
    faster = "6f1d6d5c-5f6a-4e1c-9d0e-1d0f0a7b2c3d"
    monkeypatch.setattr("generator.tiers.disk_identity._new", lambda: _write_first(tmp_path, faster))
    assert folder_identity(tmp_path) == faster
    assert [path.name for path in tmp_path.iterdir()] == ["disk-id"]


def _write_first(folder, identity: str) -> bytes:
    (folder / "disk-id").write_text(identity)
    return b"ffffffff-5f6a-4e1c-9d0e-1d0f0a7b2c3d"


@pytest.mark.parametrize("content", [b"", b"\n", b"no uuid", b"\xff\xfe", b"6f1d6d5c-5f6a"])
def test_a_file_that_holds_no_identity_is_reported_and_left_alone(tmp_path, content):
    (tmp_path / "disk-id").write_bytes(content)
    with capture_logs() as logs:
        assert folder_identity(tmp_path) == ""
    assert [entry["event"] for entry in logs] == ["the disk has no identity"]
    assert (tmp_path / "disk-id").read_bytes() == content


def test_a_folder_that_cannot_be_written_to_has_no_identity(tmp_path):
    """There is a file in its place, so that not even root can write there."""
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        assert open_disk(tmp_path / "file").identity == ""
    assert [entry["event"] for entry in logs] == ["the disk tier is read-only", "the disk has no identity"]


def test_a_store_keeps_its_identity(store):
    one, other = (open_objects(ObjectRequests(store, "store")) for _ in range(2))
    assert str(UUID(one.identity)) == one.identity == other.identity
    assert one.nodes() == []


def test_a_folder_and_a_store_in_it_have_one_identity(tmp_path):
    identity = open_disk(tmp_path).identity
    assert store_identity(ObjectRequests(LocalStore(tmp_path), "folder")) == identity


def test_the_identity_of_a_machine_that_was_faster_stays(store):
    requests = ObjectRequests(store, "store")
    requests.create("disk-id", b"6f1d6d5c-5f6a-4e1c-9d0e-1d0f0a7b2c3d\n")
    requests.create("disk-id", b"ffffffff-5f6a-4e1c-9d0e-1d0f0a7b2c3d\n")
    assert store_identity(requests) == "6f1d6d5c-5f6a-4e1c-9d0e-1d0f0a7b2c3d"


@pytest.mark.parametrize("content", [b"", b"no uuid"])
def test_an_object_that_holds_no_identity_is_reported(store, content):
    store.put("disk-id", content)
    with capture_logs() as logs:
        assert store_identity(ObjectRequests(store, "store")) == ""
    assert [entry["event"] for entry in logs] == ["the disk has no identity"]


@pytest.mark.parametrize("methods", ["GET PUT", "PUT"])
def test_a_store_that_refuses_has_no_identity_and_gets_none(s3, methods):
    requests = s3.open(s3.new_bucket())
    with s3.answering(failing("403 Forbidden", methods=methods)):
        assert open_objects(requests).identity == ""
    assert [list(chunk) for chunk in requests._store.list()] == []
