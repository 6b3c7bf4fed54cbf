"""Room for host memory."""

import shutil

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome

_GIB = 1 << 30


class HostMemory:
    """Compares ``generator.kv.host_gib`` with what its file system has free, or the stack already has there."""

    name = "host memory"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if the memory does not fit."""
        kv, folder = context.settings.kv, context.place.host
        if not kv.host_gib:
            return Outcome.skipped("generator.kv.host_gib is 0")
        if folder is None:
            return Outcome.failed(context.place.host_error)
        held = sum(file.stat().st_blocks * 512 for file in kv.host_dir.glob(f"{kv.host_file.stem}*.kv"))
        free = shutil.disk_usage(folder).free
        figure = f"{free / _GIB:.1f} GiB free in {kv.host_dir}"
        if held:
            figure += f", {held / _GIB:.1f} GiB are the stack's own"
        if kv.host_gib * _GIB > free + held:
            return Outcome.failed(
                f"generator.kv.host_gib is {kv.host_gib:g}, but {kv.host_dir} has only {free / _GIB:.2g} GiB free: "
                "lower it, or enlarge that file system (in a container, with docker run --shm-size)",
                figure,
            )
        return Outcome.passed(figure)
