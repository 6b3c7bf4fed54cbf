"""The folder of a report on all benchmarks."""

from pathlib import Path

from examine.evaluation.evaluation import ReportFolder


class SuiteFolder(ReportFolder):
    """The folder that ``--out`` names. It has the report, and the files of each benchmark."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "out")

    def result(self, name: str) -> Path:
        """The object that a benchmark printed."""
        return self.path / f"{name}.json"

    def log(self, name: str) -> Path:
        """What else a benchmark printed."""
        return self.path / f"{name}.log"

    def picture(self, name: str) -> Path:
        """What a benchmark drew."""
        return self.path / f"{name}.png"
