"""``ragtree ingest`` on files, with a client that only records."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from services.cli import ingest
from services.cli.ingest import Ingestion
from services.cli.output import progress_bar


class RememberingClient:
    """Accepts everything; a line that is not JSON fails with its number in the batch."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.batches: list[bytes] = []
        self._jobs: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count()

    def put_document(self, _collection: str, document_id: str, content: bytes, *_: str) -> dict[str, Any]:
        self.documents[document_id] = content
        return self._job(stored=1, errors=[])

    def put_batch(self, _collection: str, jsonl: bytes) -> dict[str, Any]:
        self.batches.append(jsonl)
        lines = jsonl.splitlines()
        bad = [number for number, line in enumerate(lines, start=1) if not line.startswith(b"{")]
        errors = [{"line": number, "document_id": None, "message": "not JSON"} for number in bad]
        return self._job(stored=len(lines) - len(bad), errors=errors)

    def job(self, job_id: str) -> dict[str, Any]:
        return self._jobs[job_id]

    def _job(self, stored: int, errors: list[dict[str, Any]]) -> dict[str, Any]:
        job = {"job_id": f"j{next(self._numbers)}", "status": "completed", "stored": stored, "unchanged": 0}
        job |= {"failed_documents": len(errors), "errors": errors}
        return self._jobs.setdefault(job["job_id"], job)


@pytest.fixture
def client():
    return RememberingClient()


@pytest.fixture
def ingestion(client):
    with progress_bar() as progress:
        yield Ingestion(client, "c", progress)


def test_ingest_refuses_a_second_file_with_the_same_id(client, ingestion, tmp_path):
    files = [tmp_path / "a" / "readme.md", tmp_path / "b" / "readme.md"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"This is {file.parent.name}.")
        ingestion.send_file(file, "readme.md")
    assert client.documents == {"readme.md": b"This is a."}
    (failure,) = ingestion.failures
    assert str(files[1]) in failure
    assert str(files[0]) in failure
    assert (ingestion.count("stored"), ingestion.failed) == (1, 1)


def test_ingest_accepts_the_same_file_twice(client, ingestion, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("text")
    for _ in range(2):
        ingestion.send_file(file, "a.txt")
    assert ingestion.failed == 0


def test_batches_are_limited_in_lines_and_bytes_and_complete(client, ingestion, monkeypatch):
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(ingest, "BATCH_BYTES", 100)
    lines = [json.dumps({"id": str(n), "text": "x" * (90 if n == 4 else 1)}).encode() + b"\n" for n in range(8)]
    ingestion.send_batches(lines, "file")
    assert b"".join(client.batches) == b"".join(lines)
    assert all(batch.count(b"\n") <= 3 for batch in client.batches)
    assert all(len(batch) <= 100 or batch.count(b"\n") == 1 for batch in client.batches)


def test_ingest_reports_a_broken_line_by_its_number_in_the_file(ingestion, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 3)
    file: Path = tmp_path / "many.jsonl"
    file.write_text("\n".join(["{}"] * 4 + ["broken"] + ["{}"] * 3 + ["broken"]))
    ingestion.send_file(file, "many.jsonl")
    assert [failure.split(": ")[0] for failure in ingestion.failures] == [f"{file} (line 5)", f"{file} (line 9)"]


def test_ingest_reads_every_format_in_a_folder_and_skips_hidden_files(client, monkeypatch, tmp_path):
    monkeypatch.setattr(ingest, "connect", lambda *_: client)
    read = ["a.docx", "b.PPTX", "c.xlsx", "d.epub", "e.csv", "f.json", "src/g.py", "src/h.yaml"]
    hidden = [".git/config.toml", ".env.yaml", "~$a.docx", "src/~$b.docx"]
    for name in [*read, *hidden]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    ingest.ingest([tmp_path])
    assert sorted(client.documents) == read


@pytest.mark.parametrize("name", ["picture.png", "report.docm", "sheet.xlsm", "old.doc", "a.out", "Makefile"])
def test_ingest_refuses_other_files(client, ingestion, tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00")
    ingestion.send_file(tmp_path / name, name)
    assert not client.documents
    assert ingestion.failed == 1
