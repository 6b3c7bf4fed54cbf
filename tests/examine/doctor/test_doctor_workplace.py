"""A doctor's temporary folders and processes do not outlive it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from doctor_cases import kv_settings

from examine.doctor import workplace
from examine.doctor.workplace import WorkFolder, Workplace
from protocol.errors import ConfigError

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def places(tmp_path, monkeypatch) -> Path:
    """Empty places for temporary files, host memory and KV on disk."""
    for name in ("tmp", "host", "kv"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def left(places: Path) -> list[Path]:
    return [file for name in ("tmp", "host", "kv") for file in (places / name).iterdir()]


def test_folders_are_in_the_users_places_and_are_deleted(places):
    with Workplace(kv_settings(places)) as place:
        assert (place.temporary.parent, place.host.parent, place.disk.parent) == (
            places / "tmp",
            places / "host",
            places / "kv",
        )
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(place.temporary)
        for folder in (place.temporary, place.host, place.disk):
            (folder / "sub").mkdir()
            (folder / "sub" / "file").write_text("KV")
    assert left(places) == []
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(places / "tmp")


def test_folders_are_deleted_after_an_error(places):
    with pytest.raises(ZeroDivisionError), Workplace(kv_settings(places)):
        raise ZeroDivisionError
    assert left(places) == []


def test_the_nearest_parent_is_used_if_a_place_does_not_exist_yet(places):
    with Workplace(kv_settings(places, disk_dir=places / "not" / "yet" / "there")) as place:
        assert place.disk.parent == places
    assert not (places / "not").exists()


def test_places_that_cannot_be_used_are_said(places):
    (places / "file").touch()
    settings = kv_settings(places, disk_dir=places / "file", host_dir=places / "file")
    with Workplace(settings) as place:
        assert (place.host, place.disk) == (None, None)
        assert place.host_error == f"generator.kv.host_dir {places / 'file'} cannot be written to: Not a directory"
    assert left(places) == []


def test_no_place_for_temporary_files_is_an_error(places, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(places / "nowhere" / "file"))
    (places / "nowhere").touch()
    with pytest.raises(ConfigError, match="there is no place for temporary files: Not a directory"):
        Workplace(kv_settings(places)).__enter__()
    assert left(places) == []


def test_child_processes_are_ended_but_earlier_ones_are_not(places, monkeypatch):
    monkeypatch.setattr(workplace, "_END_S", 1.0)
    earlier = subprocess.Popen(SLEEP)
    try:
        with Workplace(kv_settings(places)):
            child = subprocess.Popen(SLEEP)
            stubborn = subprocess.Popen(STUBBORN, stdout=subprocess.PIPE)
            assert stubborn.stdout.readline() == b"ready\n"
        assert child.poll() is not None
        assert stubborn.poll() is not None
        assert earlier.poll() is None
    finally:
        earlier.kill()
        earlier.wait()


def test_memory_that_killed_ranks_shared_is_freed(places):
    memory = places / "shm"
    memory.mkdir()
    (memory / "vllm_dist_theirs-tp:0-[0-1]-cpushm_0").touch()
    with Workplace(kv_settings(places), shared_memory=memory) as place:
        (place.temporary / "vllm_dist_ours").touch()
        (memory / "vllm_dist_ours-tp:0-[0-1]-cpushm_0").touch()
    assert [file.name for file in memory.iterdir()] == ["vllm_dist_theirs-tp:0-[0-1]-cpushm_0"]


KILLED = """
import sys, time
from pathlib import Path
from examine.doctor.workplace import WorkFolder
folder = WorkFolder(Path(sys.argv[1]))
(folder.path / "file").write_text("KV")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_leftovers_of_killed_processes_are_deleted_and_folders_in_use_are_not(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    other = Path(process.stdout.readline().strip())
    mine = WorkFolder(tmp_path)
    assert (other / "file").exists()
    process.kill()
    process.wait()
    (tmp_path / "ragtree-doctor-file").touch()
    WorkFolder(tmp_path).remove()
    assert not other.exists()
    assert mine.path.exists()
    mine.remove()
    mine.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["ragtree-doctor-file"]


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from examine.doctor import workplace
from examine.doctor.workplace import Workplace
from generator.settings import KvSettings
folder = Path(sys.argv[1])
place = Workplace(KvSettings(host_dir=folder, disk_dir=folder))
place.__enter__()
# As if the interrupt had come before the first line of the clean-up.
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_before_the_clean_up_leaves_nothing_behind(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KeyboardInterrupt" in ran.stderr
    assert list(tmp_path.iterdir()) == []
