"""Uploads of generated, mutated and real files."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.files.mutations import mutated
from ragtree_lab.fuzz.files.packages import repackaged
from ragtree_lab.fuzz.files.pdf_objects import reworked
from ragtree_lab.fuzz.files.samples import MAKERS, File, sample
from ragtree_lab.fuzz.inputs.questions import COLLECTION
from ragtree_lab.fuzz.requests import Input, Piece, Request, call

_PACKAGES = {".docx", ".pptx", ".xlsx", ".epub"}
_REFUSED_WITHIN_S = 90.0
"""A loader may use 30 s of processor time, and others wait for it."""
_PLACES = 500
"""So many documents replace each other, so that the store does not grow without end."""
_MOST_REAL_BYTES = 256 * 1024
_UNTYPED = "application/octet-stream"
_VALID_SHARE, _WRONG_TYPE_SHARE, _UNTYPED_SHARE = 0.15, 0.08, 0.1


def real_files(folders: Sequence[Path]) -> list[File]:
    """The files below these folders whose suffix a loader reads, in a fixed order. Large ones are left out."""
    found = []
    for file in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        if file.suffix.lower() in MAKERS and 0 < file.stat().st_size <= _MOST_REAL_BYTES:
            media_type, _ = MAKERS[file.suffix.lower()]
            found.append(File(media_type, file.suffix.lower(), file.read_bytes()))
    return found


def damaged(content: bytes, suffix: str, draws: Random) -> bytes:
    """The content with changes that fit its format."""
    if suffix in _PACKAGES:
        return repackaged(content, draws) if draws.random() < 0.8 else mutated(content, draws)
    if suffix == ".pdf":
        return reworked(content, draws)
    return mutated(content, draws)


def file_uploads(real: Sequence[File]) -> SearchStrategy[Input]:
    """Uploads of one file each: of a generated or a real one, mostly damaged, sometimes under a wrong type."""
    return st.builds(lambda seed: upload(Random(seed), real), st.integers(0, 2**63))  # noqa: S311 - repeatable


def upload(draws: Random, real: Sequence[File]) -> Input:
    """One upload."""
    file = draws.choice(real) if real and draws.random() < 0.5 else sample(draws.choice(list(MAKERS)), draws)
    content = file.content
    if draws.random() > _VALID_SHARE:
        content = damaged(content, file.suffix, draws)
    media_type, kind = file.media_type, draws.random()
    if kind < _WRONG_TYPE_SHARE:
        media_type, _ = MAKERS[draws.choice(list(MAKERS))]
    elif kind < _WRONG_TYPE_SHARE + _UNTYPED_SHARE:
        media_type = _UNTYPED
    place = draws.randrange(_PLACES)
    target = f"/v1/collections/{COLLECTION}/documents/file-{place}?filename={quote(f'file-{place}{file.suffix}')}"
    sent = call("PUT", target, content, headers={"Content-Type": media_type})
    return Input(requests=(Request(pieces=(Piece(sent),), refused_within_s=_REFUSED_WITHIN_S),), files=1)
