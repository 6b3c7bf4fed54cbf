"""``ragtree ingest``: uploads documents, with a progress bar. Unreadable documents are reported and skipped."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import Progress

from protocol.documents import DEFAULT_COLLECTION, UNFINISHED
from retriever.loaders.registry import JSON_LINES, media_type_of
from services.cli.connection import ApiKeyOption, CollectionOption, UrlOption, connect
from services.cli.output import errors, progress_bar
from services.client import RequestFailed, StackClient

BATCH_DOCUMENTS = 1000
BATCH_BYTES = 8 * 1024 * 1024
"""Large enough to embed a batch efficiently; small enough for the progress bar and the limit of a request body."""

# Office writes a file ~$report.docx while report.docx is open.
_HIDDEN = (".", "~$")


def ingest(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files or folders: text, Markdown, HTML, PDF, Office, EPUB, CSV, JSON, source code, and JSON lines of "
            "documents, which may have triplets.",
            exists=True,
        ),
    ] = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    python_stdlib: Annotated[
        bool,
        typer.Option(
            "--python-stdlib", help="Ingest the modules, classes and functions of this Python's standard library."
        ),
    ] = False,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
) -> None:
    """Ingest documents. The exit code is 1 if a document was skipped."""
    if not paths and not python_stdlib:
        raise typer.BadParameter("give files or folders, or --python-stdlib", param_hint="PATHS")
    with progress_bar() as progress:
        ingestion = Ingestion(connect(url, api_key), collection, progress)
        if python_stdlib:
            ingestion.send_batches(_stdlib_lines(), "the standard library")
        for path in paths or []:
            for file in _files(path):
                ingestion.send_file(file, _document_id(file, path))
        ingestion.wait()
    for failure in ingestion.failures:
        errors.print(f"[red]skipped[/] {failure}")
    errors.print(
        f"{ingestion.count('stored')} documents ingested, {ingestion.count('unchanged')} unchanged, "
        f"{ingestion.failed} skipped.",
    )
    if ingestion.failed:
        raise typer.Exit(1)


@dataclass
class _Job:
    """A job's last known state, its file, and the number of that file's lines in earlier jobs."""

    state: dict[str, Any]
    name: str
    lines_before: int


class Ingestion:
    """One run of the command: its jobs and their results."""

    def __init__(self, client: StackClient, collection: str, progress: Progress) -> None:
        self._client = client
        self._collection = collection
        self._progress = progress
        self._bar = progress.add_task("ingesting", total=0)
        self._jobs: list[_Job] = []
        self._sent = 0
        self._refused: list[str] = []
        self._files: dict[str, Path] = {}

    @property
    def failed(self) -> int:
        """Number of skipped documents."""
        return self.count("failed_documents") + len(self._refused)

    @property
    def failures(self) -> Iterator[str]:
        """One line for each failure that names its document or line."""
        yield from self._refused
        for job in self._jobs:
            for error in job.state["errors"]:
                line = error.get("line") and error["line"] + job.lines_before
                place = error.get("document_id") or (f"line {line}" if line else None)
                yield " ".join(filter(None, [job.name, place and f"({place})"])) + f": {error['message']}"

    def send_file(self, file: Path, document_id: str) -> None:
        """Upload one file, or the documents in a JSON-lines file.

        If two files have the same id, which happens across folders, the second is refused: it would replace the first.
        """
        first = self._files.setdefault(document_id, file)
        if first != file:
            self._refuse(file, f"{first} has the same document id, {document_id!r}; ingest their common folder instead")
            return
        try:
            media_type = media_type_of(file.name)
            if media_type == JSON_LINES:
                self.send_batches(file.read_bytes().splitlines(keepends=True), str(file))
                return
            if media_type is None:
                self._refuse(file, "no loader reads files of this kind")
                return
            job = self._client.put_document(self._collection, document_id, file.read_bytes(), media_type, file.name)
        except RequestFailed as error:
            self._refuse(file, str(error))
        except OSError as error:
            self._refuse(file, error.strerror or str(error))
        else:
            self._follow(job, str(file), documents=1)

    def send_batches(self, lines: Iterable[bytes], name: str) -> None:
        """Upload JSON lines in batches."""
        before = 0
        for batch in _batches(lines):
            body = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in batch)
            self._follow(self._client.put_batch(self._collection, body), name, len(batch), before)
            before += len(batch)

    def wait(self) -> None:
        """Wait until every job has ended."""
        # The stack runs jobs one after another, so poll the first unfinished one.
        for job in self._jobs:
            while job.state["status"] in UNFINISHED:
                job.state = self._client.job(job.state["job_id"])
                self._show()
                if job.state["status"] in UNFINISHED:
                    time.sleep(0.1)

    def _follow(self, state: dict[str, Any], name: str, documents: int, lines_before: int = 0) -> None:
        self._jobs.append(_Job(state, name, lines_before))
        self._sent += documents
        self._show()

    def _refuse(self, file: Path, reason: str) -> None:
        self._refused.append(f"{file}: {reason}")

    def count(self, field: str) -> int:
        """Return the sum of a field over the jobs: ``stored``, ``unchanged`` or ``failed_documents``."""
        return sum(job.state[field] for job in self._jobs)

    def _show(self) -> None:
        done = self.count("stored") + self.count("unchanged") + self.count("failed_documents")
        self._progress.update(self._bar, total=self._sent, completed=done)


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == BATCH_DOCUMENTS or size + len(line) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    yield from sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(_HIDDEN) for part in file.relative_to(path).parts)
    )


def _document_id(file: Path, given: Path) -> str:
    """Return the path relative to the given folder, so the id does not depend on how the folder is reached."""
    return file.name if file == given else file.relative_to(given).as_posix()


def _stdlib_lines() -> Iterator[bytes]:
    from retriever.demo_corpus.stdlib_corpus import stdlib_documents

    encoder = msgspec.json.Encoder()
    for document in stdlib_documents():
        yield encoder.encode(document) + b"\n"
