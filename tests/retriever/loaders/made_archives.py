"""Archives that tests take apart and damage."""

from collections.abc import Mapping
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def unzipped(content: bytes) -> dict[str, bytes]:
    with ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_files(content: bytes, files: Mapping[str, str | bytes]) -> bytes:
    """Return an archive with some files added or replaced."""
    return zipped({**unzipped(content), **files})


def flagged_encrypted(content: bytes) -> bytes:
    """Return an archive whose directory says that its files are encrypted."""
    changed = bytearray(content)
    at = changed.find(b"PK\x01\x02")
    while at >= 0:
        changed[at + 8] |= 1
        at = changed.find(b"PK\x01\x02", at + 4)
    return bytes(changed)
