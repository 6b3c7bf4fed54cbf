"""Room for KV on disk."""

import os
import shutil
from pathlib import Path
from time import perf_counter

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome

_GIB = 1 << 30
_PROBE_BYTES = 32 << 20


class Disk:
    """Writes a file beside the KV on disk, and compares ``generator.kv.disk_gib`` with what is free there."""

    name = "disk"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if nothing can be written, or if the disk is too small."""
        kv, folder = context.settings.kv, context.place.disk
        if not kv.disk_gib:
            return Outcome.skipped("generator.kv.disk_gib is 0")
        if kv.object_store is not None:
            return Outcome.skipped("generator.kv.object_store has the KV in the place of a folder")
        if folder is None or kv.disk_dir is None:
            return Outcome.failed(context.place.disk_error)
        free = shutil.disk_usage(folder).free
        try:
            rate = _write_rate(folder / "probe")
        except OSError as error:
            return Outcome.failed(f"the folder for KV on disk {kv.disk_dir} cannot be written to: {error.strerror}")
        figure = f"{free / _GIB:.1f} GiB free in {kv.disk_dir}, writes {rate / 1e6:.0f} MB/s"
        held = sum(file.stat().st_size for file in kv.disk_dir.rglob("*.safetensors"))
        if kv.disk_gib * _GIB > free + held:
            return Outcome.failed(
                f"generator.kv.disk_gib is {kv.disk_gib:g}, but {kv.disk_dir} has only {free / _GIB:.2g} GiB free: "
                "lower it, or set generator.kv.disk_dir to a larger disk",
                figure,
            )
        return Outcome.passed(figure)


def _write_rate(file: Path) -> float:
    """Return bytes per second of a file that is written and flushed to the disk. Raises OSError."""
    content = os.urandom(_PROBE_BYTES)
    try:
        with file.open("wb") as opened:
            began = perf_counter()
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            return len(content) / (perf_counter() - began)
    finally:
        file.unlink(missing_ok=True)
