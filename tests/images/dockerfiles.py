"""Reads the Dockerfile and .dockerignore, as far as the tests need."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"


@dataclass
class Stage:
    name: str
    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def stages() -> dict[str, Stage]:
    """Return the stages by name, in order."""
    found: dict[str, Stage] = {}
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    for instruction in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not instruction.strip():
            continue
        keyword, rest = instruction.split(maxsplit=1)
        if keyword == "FROM":
            parent, _, name = rest.split()
            found[name] = stage = Stage(name, parent)
        else:
            stage.instructions.append((keyword, rest.strip()))
    return found


def chain(target: str) -> list[tuple[str, str]]:
    """Return the instructions of a target and its parent stages, in build order."""
    every = stages()
    stage = every[target]
    return [*(chain(stage.parent) if stage.parent in every else []), *stage.instructions]


def last(target: str, keyword: str) -> str:
    """Return the effective value of an instruction in a target."""
    return [rest for each, rest in chain(target) if each == keyword][-1]


def environment(target: str) -> dict[str, str]:
    """Return the environment of a target's containers."""
    pairs = [pair for keyword, rest in chain(target) if keyword == "ENV" for pair in shlex.split(rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def reaches_builder(path: str) -> bool:
    """Return whether .dockerignore includes a path. The last matching pattern decides."""
    through = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and _matches(line.removeprefix("!"), path):
            through = line.startswith("!")
    return through


def _matches(pattern: str, path: str) -> bool:
    # `**/` matches any number of folders, `*` anything within a name. Paths below a match also match.
    wanted = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
    return re.fullmatch(f"{wanted}(/.*)?", path) is not None
