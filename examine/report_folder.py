"""The folder of a report."""

from pathlib import Path

from protocol.errors import ConfigError

REPORT = "report.md"


class ReportFolder:
    """The folder ``path``, which is made if it does not exist.

    ``option`` names it on the command line. Raises ConfigError if it holds anything already, because that would mix two
    reports, or cannot be made.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise ConfigError(f"the report's folder {path} cannot be made: {error.strerror}", option) from error
        if occupied:
            raise ConfigError(f"the folder {path} is not empty: name a new one with --{option}", option)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step, so that there is always a complete one. Raises OSError."""
        file = self.path / name
        temporary = file.with_name(f"{name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(file)
