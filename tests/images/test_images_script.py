"""`make images` builds both targets, and reports a missing Docker engine."""

import os
import subprocess
import tomllib

import pytest
from dockerfiles import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def make_images(tmp_path):
    """Run the script with a fake docker (a shell script), or without any."""
    # Only the programs that the script needs, so that the machine's own docker is not found.
    for tool in ("bash", "dirname", "sed", "git"):
        (tmp_path / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())

    def run(docker: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        if docker is not None:
            (tmp_path / "docker").write_text(f"#!{tmp_path}/bash\n{docker}\n")
            (tmp_path / "docker").chmod(0o755)
        return subprocess.run(
            [tmp_path / "bash", ROOT / "scripts/images", *arguments],
            env={**os.environ, "PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_missing_docker_is_reported(make_images):
    ran = make_images(None)
    assert ran.returncode == 1
    assert "Docker, which is not installed" in ran.stderr


def test_missing_docker_engine_is_reported_with_its_error(make_images):
    ran = make_images('echo "Cannot connect to the Docker daemon" >&2; exit 1')
    assert ran.returncode == 1
    assert "engine does not answer: Cannot connect to the Docker daemon" in ran.stderr


def test_both_images_are_built(make_images):
    ran = make_images('[ "$1" = version ] || echo "$@"')
    assert ran.returncode == 0, ran.stderr
    for target, line in zip(("cpu", "gpu"), ran.stdout.splitlines(), strict=True):
        assert line.startswith(f"build --file docker/Dockerfile --target {target} --tag ragtree:{VERSION}-{target} ")


def test_one_image_is_built_alone(make_images):
    assert make_images('[ "$1" = version ] || echo "$@"', "gpu").stdout.count("--target") == 1


def test_failing_build_fails_the_script(make_images):
    assert make_images('[[ "$*" != *"--target cpu"* ]]').returncode == 1
