"""The gate of composed reuse, and the files that keep it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from cachectl.atomic_file import write_atomically
from protocol.gate import GateReport, current_version

_log = structlog.get_logger(__name__)


class Gate:
    """What is known about composing the KV of one model. Without ``reports``, nothing passes."""

    def __init__(self, reports: Sequence[GateReport] = ()) -> None:
        self.reports = tuple(reports)

    def passes(self, method: str, share: float) -> bool:
        """Whether composing has passed with this selector, and with this share of tokens computed again or less."""
        return any(report.passed for report in self._about(method, share))

    def bound(self, method: str, share: float) -> float | None:
        """The deviation up to which a composed prompt is used, from the report on the nearest share; None: any."""
        nearest = max(self._about(method, share), key=lambda report: report.share, default=None)
        return None if nearest is None else nearest.bound

    def _about(self, method: str, share: float) -> Iterator[GateReport]:
        return (report for report in self.reports if report.method == method and report.share <= share)


class GateFolder:
    """Keeps gates in a folder of ``cache_dir``, a file for each fingerprint of KV."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "gates"

    def read(self, fingerprint: str) -> Gate:
        """The gate of a fingerprint. Nothing passes it if there is no file, or a broken one."""
        try:
            reports = msgspec.json.decode(self._file(fingerprint).read_bytes(), type=list[GateReport])
        except FileNotFoundError:
            return Gate()
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("the gate's file cannot be read, so nothing passes; run the gate again", reason=str(error))
            return Gate()
        if any(report.fingerprint != fingerprint for report in reports):
            _log.warning("the gate's file is of another model, so nothing passes; run the gate again")
            return Gate()
        current = [report for report in reports if report.selection == current_version(report.method)]
        if len(current) < len(reports):
            _log.warning("what was examined with an earlier version is ignored; run the gate for it again")
        return Gate(current)

    def all(self) -> Iterator[GateReport]:
        """The reports of all fingerprints whose files can be read."""
        for file in sorted(self._folder.glob("*.json")):
            yield from self.read(file.stem).reports

    def add(self, report: GateReport) -> None:
        """Add a report, in place of one on the same selector and share. Raises OSError."""
        same = report.method, report.share
        others = (old for old in self.read(report.fingerprint).reports if (old.method, old.share) != same)
        self._folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode([*others, report])).decode()
        write_atomically(self._file(report.fingerprint), text)

    def _file(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"
