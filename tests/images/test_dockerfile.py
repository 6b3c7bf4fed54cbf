"""The Dockerfile passes hadolint, pins its base images and runs as an unprivileged user. No test builds it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from dockerfiles import DOCKERFILE, ROOT, chain, environment, last, reaches_builder, stages
from options import is_option

from services import RAY_ENVIRONMENT

TARGETS = ["cpu", "gpu"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
COPIES = [
    source
    for stage in stages().values()
    for keyword, rest in stage.instructions
    if keyword == "COPY" and "--from=" not in rest
    for source in rest.split()[:-1]
]
SCRIPTS = ["docker/entrypoint", "docker/healthcheck", "scripts/compile", "scripts/install-lock"]


def test_hadolint_finds_nothing():
    ran = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_ignored_hadolint_rules_are_explained():
    comments = [line for line in DOCKERFILE.read_text().splitlines() if line.startswith("#")]
    ignored = {rule for line in comments for rule in re.findall(r"DL\d+", line.partition("hadolint ignore=")[2])}
    explained = {rule for line in comments if "hadolint ignore=" not in line for rule in re.findall(r"DL\d+", line)}
    assert ignored <= explained


def test_every_base_image_has_a_full_version():
    bases = {stage.parent for stage in stages().values()} - stages().keys()
    assert bases
    assert [
        base for base in bases if not re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base)
    ] == []


@pytest.mark.parametrize("target", TARGETS)
def test_images_declare_user_signal_port_command_and_health_check(target):
    assert last(target, "USER") == "1000:1000"
    assert last(target, "STOPSIGNAL") == "SIGTERM"
    assert last(target, "EXPOSE") == environment(target)["RAGTREE_SERVER__PORT"]
    assert json.loads(last(target, "CMD")) == ["ragtree", "up"]
    assert json.loads(last(target, "ENTRYPOINT")) == ["tini", "--", "/opt/ragtree/docker/entrypoint"]
    assert json.loads(last(target, "HEALTHCHECK").partition(" CMD ")[2]) == ["/opt/ragtree/docker/healthcheck"]


@pytest.mark.parametrize("target", TARGETS)
def test_folder_variables_point_below_writable_folders(target):
    folders = {name: path for name, path in environment(target).items() if path.startswith("/") and name != "PATH"}
    assert {"HOME", "RAGTREE_DATA_DIR", "RAGTREE_CACHE_DIR"} <= folders.keys()
    assert {name: path for name, path in folders.items() if path.split("/")[1] not in {"data", "cache", "tmp"}} == {}


@pytest.mark.parametrize("target", TARGETS)
def test_image_sets_only_existing_options(target):
    ours = [name for name in environment(target) if name.startswith("RAGTREE_")]
    assert [name for name in ours if not is_option(name)] == []


@pytest.mark.parametrize("target", TARGETS)
def test_image_sets_the_same_ray_variables(target):
    # Except authentication, which depends on the cluster that a container joins.
    told = {name: value for name, value in RAY_ENVIRONMENT.items() if name != "RAY_AUTH_MODE"}
    assert {name: environment(target).get(name) for name in told} == told


def test_cpu_image_has_no_compiler_but_the_programs_that_kuberay_calls():
    installed = " ".join(rest for keyword, rest in chain("cpu") if keyword == "RUN").split()
    assert not {"gcc", "g++", "build-essential"} & set(installed)
    assert {"wget", "tini"} <= set(installed)


@pytest.mark.parametrize("source", sorted(set(COPIES) - {"."}))
def test_copied_paths_exist_and_reach_the_builder(source):
    assert (ROOT / source).exists()
    assert reaches_builder(source)


@pytest.mark.parametrize("path", [*PACKAGES, *SCRIPTS, "LICENSE", "README.md", "cachectl/costs/profiles/a10g-7b.json"])
def test_packages_scripts_and_profiles_reach_the_builder(path):
    assert (ROOT / path).exists()
    assert reaches_builder(path)


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "scripts/demo",
        "docker/Dockerfile",
        "cachectl/tree.cpython-311-x86_64-linux-gnu.so",
        "cachectl/__pycache__/tree.cpython-311.pyc",
    ],
)
def test_image_excludes_unused_files(path):
    assert not reaches_builder(path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable(script):
    assert os.access(ROOT / script, os.X_OK)
