"""A retriever that ingests long texts, and prints by how many MiB each of them made it grow, as a JSON object."""

import asyncio
import json
import resource
import sys
import tempfile
from pathlib import Path

from retriever_cases import put, running


def peak_mib() -> float:
    # The kernel's mark, which can be set back, where getrusage knows only the highest of all times.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def reset_mib() -> float:
    """Set the mark back. Return what it is now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize() / 1024**2


async def grown(text: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as retriever:
            await put(retriever, "small", "a first document")
            before = reset_mib()
            job = await put(retriever, "long", text)
            assert job.stored == 1, job
            return peak_mib() - before


def main() -> None:
    worst, mib = json.loads(sys.argv[1]), int(sys.argv[2])
    size = mib * 1024**2
    texts = {kind: (part * (size // len(part) + 1))[:size] for kind, part in worst.items()}
    print(json.dumps({kind: asyncio.run(grown(text)) for kind, text in texts.items()}))


if __name__ == "__main__":
    main()
