"""The connector against what each supported release of vLLM has, without a GPU and without installing it."""

import ast
import inspect
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm
from packaging.version import Version
from vllm_surface.surface import BASE, CONTRACT, listed, recorded, surface_of

import generator
from generator.connector.connector import RagtreeConnector

RELEASES = recorded()
INSTALLED = Version(vllm.__version__).public
UNLISTED = {"_replace", "_exit", "_is_avx512_bf16_supported", "_is_amx_tile_supported", "_C_cache_ops"}
"""Private names of named tuples, Python and torch, and vLLM's compiled operators, which no file of a wheel lists."""


def test_the_installed_release_is_as_recorded():
    """Otherwise record it: ``vllm_surface/surface.py`` says how."""
    package = Path(vllm.__file__).parents[1]
    assert surface_of(lambda file: (package / file).read_text()) == RELEASES[INSTALLED]


@pytest.mark.parametrize("release", RELEASES)
def test_every_name_that_the_connector_uses_is_there(release):
    missing = {
        f"{file}: {name}" for file, names in listed().items() for name in names if name not in RELEASES[release][file]
    }
    assert not missing


@pytest.mark.parametrize("release", RELEASES)
def test_the_connector_takes_what_vllm_passes(release):
    taken = 0
    for name, passed in RELEASES[release][BASE].items():
        method = name.rpartition(".")[2]
        own = inspect.getattr_static(RagtreeConnector, method, None)
        defined = next((kind for kind in RagtreeConnector.__mro__ if method in vars(kind)), None)
        if passed is None or defined is None or not defined.__module__.startswith("generator."):
            continue
        function = getattr(own, "__func__", own)
        assert inspect.isfunction(function), f"{method} is no method"
        parameters = inspect.signature(function).parameters.values()
        named = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        needed = [one.name for one in parameters if one.default is inspect.Parameter.empty]
        # The class itself has another name for one of them.
        expected = [one.rstrip("?") for one in passed if one != "**" and "=" not in one]
        assert named[1 : len(expected)] == expected[1:], f"{method} is called with other arguments"
        assert set(needed) <= {*named[: len(expected)], "kwargs", "args"}, f"{method} needs more than it is given"
        taken += 1
    assert taken > 15


def test_every_private_name_of_vllm_is_listed():
    known = {name.rpartition(".")[2] for names in listed().values() for name in names} | UNLISTED
    used = set()
    for file in Path(generator.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                if owner not in ("self", "cls"):
                    used.add(node.attr)
    own = {
        part.name
        for file in Path(generator.__file__).parent.rglob("*.py")
        for part in ast.walk(ast.parse(file.read_text()))
        if isinstance(part, ast.FunctionDef)
    }
    assert used - own <= known


def test_the_contract_is_recorded():
    for surface in RELEASES.values():
        assert all(any(name.startswith(f"{kind}.") for name in surface[BASE]) for kind in CONTRACT)
