"""Checks of memory and disk, with places that are too small or cannot be written to."""

import pytest
from doctor_cases import doctor_context
from kernel_limits import largest_file

from examine.doctor.checks.space import Disk, HostMemory, Memory
from examine.doctor.context import Surroundings
from examine.doctor.outcome import Status

FAR_TOO_MUCH = 1e9


async def test_host_memory_that_fits_passes(tmp_path):
    with doctor_context(tmp_path) as context:
        found = await HostMemory().run(context)
    assert found.status is Status.PASSED
    assert f"GiB free in {tmp_path / 'host'}" in found.figure


async def test_host_memory_that_is_too_small_fails(tmp_path):
    with doctor_context(tmp_path, kv={"host_gib": FAR_TOO_MUCH}) as context:
        found = await HostMemory().run(context)
    assert found.status is Status.FAILED
    assert found.why.startswith(f"generator.kv.host_gib is 1e+09, but {tmp_path / 'host'} has only ")
    assert "docker run --shm-size" in found.why


async def test_memory_that_the_stack_already_has_counts_as_there(tmp_path):
    with doctor_context(tmp_path) as context:
        context.settings.kv.host_file.write_bytes(bytes(5 << 20))
        assert "0.0 GiB are the stack's own" in (await HostMemory().run(context)).figure


async def test_a_place_for_host_memory_that_is_no_folder_fails(tmp_path):
    (tmp_path / "file").touch()
    with doctor_context(tmp_path, kv={"host_dir": tmp_path / "file"}) as context:
        found = await HostMemory().run(context)
    why = f"generator.kv.host_dir {tmp_path / 'file'} cannot be written to: Not a directory"
    assert (found.status, found.why) == (Status.FAILED, why)


async def test_a_disk_that_fits_passes_and_stays_as_it_was(tmp_path):
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "foreign").write_text("not ours")
    with doctor_context(tmp_path) as context:
        found = await Disk().run(context)
    assert found.status is Status.PASSED
    assert "MB/s" in found.figure
    assert [file.name for file in (tmp_path / "kv").iterdir()] == ["foreign"]


async def test_a_disk_that_is_too_small_fails(tmp_path):
    with doctor_context(tmp_path, kv={"disk_gib": FAR_TOO_MUCH}) as context:
        found = await Disk().run(context)
    assert found.status is Status.FAILED
    assert found.why.startswith(f"generator.kv.disk_gib is 1e+09, but {tmp_path / 'kv'} has only ")


async def test_a_disk_that_refuses_to_write_fails(tmp_path):
    with doctor_context(tmp_path) as context:
        with largest_file(1 << 20):
            found = await Disk().run(context)
        assert list(context.place.disk.iterdir()) == []
    assert found.status is Status.FAILED
    assert found.why == f"the folder for KV on disk {tmp_path / 'kv'} cannot be written to: File too large"


async def test_a_folder_for_kv_that_is_a_file_fails(tmp_path):
    (tmp_path / "file").touch()
    with doctor_context(tmp_path, kv={"disk_dir": tmp_path / "file"}) as context:
        found = await Disk().run(context)
    why = f"the folder for KV on disk {tmp_path / 'file'} cannot be written to: Not a directory"
    assert (found.status, found.why) == (Status.FAILED, why)


@pytest.mark.parametrize(("check", "option"), [(HostMemory(), "host_gib"), (Disk(), "disk_gib")])
async def test_a_tier_that_is_off_is_not_checked(tmp_path, check, option):
    with doctor_context(tmp_path, kv={option: 0}) as context:
        found = await check.run(context)
    assert (found.status, found.why) == (Status.SKIPPED, f"generator.kv.{option} is 0")


async def test_engines_get_no_more_memory_than_the_user_gives_and_is_free(tmp_path):
    with doctor_context(tmp_path, kv={"host_gib": 0.125, "disk_gib": FAR_TOO_MUCH}) as context:
        kv = context.kv
        assert (kv["host_gib"], kv["disk_gib"]) == (0.125, 0.25)
        assert kv["host_dir"].parent == tmp_path / "host"


async def memory_of(folder, cgroup=None, surroundings=None, **kv):
    with doctor_context(folder, surroundings, kv=kv) as context:
        (folder / "model.safetensors").write_bytes(bytes(1 << 20))
        context.model_folder = folder
        return await Memory(cgroup or folder / "no-cgroup").run(context)


async def test_memory_that_suffices_passes(tmp_path):
    assert (await memory_of(tmp_path)).status is Status.PASSED


async def test_memory_that_does_not_suffice_fails(tmp_path):
    found = await memory_of(tmp_path, host_gib=FAR_TOO_MUCH)
    assert found.status is Status.FAILED
    assert "lower generator.kv.host_gib" in found.why


async def test_the_memory_limit_of_a_container_counts(tmp_path):
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.current").write_text("1000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert (await memory_of(tmp_path, cgroup)).status is Status.PASSED
    (cgroup / "memory.max").write_text(f"{100 << 20}\n")
    found = await memory_of(tmp_path, cgroup)
    assert found.status is Status.FAILED
    assert "only 0.1 GiB are available" in found.why


async def test_a_running_stack_already_has_its_memory(tmp_path):
    found = await memory_of(tmp_path, surroundings=Surroundings("http://127.0.0.1:1"), host_gib=FAR_TOO_MUCH)
    assert found.status is Status.PASSED
    assert "beside the running stack" in found.figure
