"""User input never determines file names, and files are private to their owner."""

import os
import re
import stat
from itertools import cycle

import pytest
from retriever_cases import TENANT, put, running, search, upload

from protocol.errors import InvalidRequest

STRANGE = [
    "../../../escaped",
    "/tmp/escaped",
    "..",
    ".",
    "~/escaped",
    "a/../../b",
    "..\\..\\escaped",
    "C:\\Windows\\escaped",
    "\\\\host\\share",
    "CON",
    "NUL.txt",
    "name.",
    "file:///etc/passwd",
    "%2e%2e%2fescaped",
    "$(touch escaped)",
    "`touch escaped`",
    "; rm -rf .",
    "-rf",
    "store.sqlite3",
    "..\u2215escaped",
    "\u202egnp.escaped",
    "\uff0e\uff0e\uff0fescaped",
    "\u00e9 e\u0301",
    "\U0001f600" * 200,
    "x" * 1000,
]
REFUSED = ["", " ", "a\x00b", "a\nb", "a\r\nb", "\x1b[2J", "\ud800", "x" * 1025]


def files_under(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old_umask():
    """The usual umask, which makes new files readable for all users."""
    before = os.umask(0o022)
    yield
    os.umask(before)


async def test_user_supplied_names_never_become_file_names(tmp_path, old_umask):
    data, index = tmp_path / "around" / "data", {"kind": "ivf"}
    async with running(data, index=index) as retriever:
        await put(retriever, "plain", "plain words")
    plain = files_under(tmp_path)
    async with running(data, index=index) as retriever:
        for tenant, name in zip(cycle(["acme", "../acme", "/etc", "a\\b"]), STRANGE, strict=False):
            sent = upload(name, f"words of {name}", filename=name, title=name, attributes={name: name})
            await retriever.put_document(tenant, name, sent, name)
        for name in STRANGE:
            assert (await put(retriever, name, "words", name, filename=name)).stored == 1
            assert (await retriever.get_document(TENANT, name, name)).info.filename == name
            assert (await search(retriever, "words", collection=name)).docs[0].document_id == name
            await retriever.delete_document(TENANT, name, name)
        for name in REFUSED:
            with pytest.raises(InvalidRequest):
                await retriever.put_document(TENANT, "default", upload(name, "words"))
    added = files_under(tmp_path) - plain
    # Index files are named by the key of their collection.
    kept = re.compile(r"around/data/(indexes/\d+\.index|lexical/words-\d+/\d+/[\w.-]+)")
    assert [name for name in added if not kept.fullmatch(name)] == []


async def test_files_are_private_to_their_owner(tmp_path, old_umask):
    data = tmp_path / "data"
    async with running(data) as retriever:
        await put(retriever, "secret", "the owner alone may read this")
        assert {".sqlite3", ".sqlite3-wal"} <= {path.suffix for path in data.iterdir()}
        assert [path for path in data.iterdir() if path.name != "retriever.lock" and others_may(path)] == []
    assert not others_may(data)


def others_may(path):
    return stat.S_IMODE(path.stat().st_mode) & 0o077
