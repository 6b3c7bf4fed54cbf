"""Mutations of ZIP packages (Office, EPUB): entries, their XML, and what the directory says of them."""

import io
import re
import warnings
import zipfile
from collections.abc import Callable
from random import Random

from ragtree_lab.fuzz.files.mutations import flipped, mutated

_LAUGHS = (
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    + b"]>"
)
_OUTSIDE = b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
_NUMBER = re.compile(rb'(?<==")\d+(?=")')
_REFERENCE = re.compile(rb'(?<=ref=")[A-Z]+\d+:?[A-Z]*\d*(?=")|(?<=r=")[A-Z]+\d+(?=")')
_TEXT = re.compile(rb"(?<=>)[^<>]{3,}(?=<)")
_EXTREMES = [b"0", b"-1", b"1048577", b"2147483648", b"9" * 25, b"NaN"]
_CELLS = [b"A1:XFD1048576", b"XFD1048576", b"A0", b"ZZZZZ9", b"A1:A1"]
_BOMB_MIB = [8, 64, 300]

Entries = list[tuple[str, bytes]]


def _xml(entries: Entries, draws: Random) -> int:
    places = [n for n, (name, _) in enumerate(entries) if name.endswith((".xml", ".rels", ".xhtml", ".opf"))]
    return draws.choice(places or range(len(entries)))


def _changed_xml(change: Callable[[bytes, Random], bytes]) -> Callable[[Entries, Random], Entries]:
    def changed(entries: Entries, draws: Random) -> Entries:
        place = _xml(entries, draws)
        name, content = entries[place]
        return [*entries[:place], (name, change(content, draws)), *entries[place + 1 :]]

    return changed


def _behind_declaration(content: bytes, inserted: bytes, use: bytes) -> bytes:
    head, end, rest = content.partition(b"?>") if content.startswith(b"<?xml") else (b"", b"", content)
    return head + end + inserted + rest.replace(b"</", use + b"</", 1)


def _entities(content: bytes, draws: Random) -> bytes:
    declared, use = draws.choice([(_LAUGHS, b"&j;"), (_OUTSIDE, b"&e;")])
    return _behind_declaration(content, declared, use)


def _extreme_number(content: bytes, draws: Random) -> bytes:
    return _replaced_one(_NUMBER, content, draws.choice(_EXTREMES), draws)


def _extreme_cell(content: bytes, draws: Random) -> bytes:
    return _replaced_one(_REFERENCE, content, draws.choice(_CELLS), draws)


def _long_text(content: bytes, draws: Random) -> bytes:
    long = draws.choice([b"!", b"a ", "字".encode(), b"x"]) * draws.choice([1000] * 8 + [30_000] * 2 + [1_000_000])
    return _replaced_one(_TEXT, content, long, draws)


def _replaced_one(pattern: re.Pattern[bytes], content: bytes, by: bytes, draws: Random) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return flipped(content, draws) if content else b"<x/>"
    at = draws.choice(found)
    return content[: at.start()] + by + content[at.end() :]


def _deep(content: bytes, draws: Random) -> bytes:
    depth = draws.choice([100, 5000, 100_000])
    return content.replace(b"</", b"<a>" * depth + b"</a>" * depth + b"</", 1)


def _many_elements(content: bytes, draws: Random) -> bytes:
    elements = [
        m.group() for m in re.finditer(rb"<(?:row|p|w:p|a:p|c|w:tr|item)\b.*?</(?:row|p|w:p|a:p|c|w:tr)>", content)
    ]
    if not elements:
        return _deep(content, draws)
    chosen = draws.choice(elements)
    times = min(draws.choice([10, 1000, 20_000]), 4_000_000 // len(chosen) + 1)
    return content.replace(chosen, chosen * times, 1)


def _encoding(content: bytes, draws: Random) -> bytes:
    name = draws.choice([b"utf-16", b"utf-7", b"cp037", b"idna", b"x", b"rot13", b"zip"])
    return re.sub(rb'encoding=["\'][^"\']*["\']', b'encoding="' + name + b'"', content, count=1)


def _without_one(entries: Entries, draws: Random) -> Entries:
    place = draws.randrange(len(entries))
    return entries[:place] + entries[place + 1 :]


def _twice(entries: Entries, draws: Random) -> Entries:
    name, content = draws.choice(entries)
    return [*entries, (name, mutated(content, draws) if content else b"x")]


def _renamed(entries: Entries, draws: Random) -> Entries:
    place = draws.randrange(len(entries))
    name = draws.choice(
        [
            "../../../tmp/x",
            "/etc/passwd",
            "a\x00b",
            "A" * 60_000,
            "",
            entries[place][0].upper(),
            "é",
            "word/vbaProject.bin",
        ]
    )
    return [*entries[:place], (name, entries[place][1]), *entries[place + 1 :]]


def _bomb(entries: Entries, draws: Random) -> Entries:
    place = draws.randrange(len(entries))
    return [*entries[:place], (entries[place][0], b" " * (draws.choice(_BOMB_MIB) << 20)), *entries[place + 1 :]]


def _many_entries(entries: Entries, draws: Random) -> Entries:
    return [*entries, *((f"x/{number}.xml", b"<x/>") for number in range(draws.choice([100, 2000, 10_001])))]


_ORDINARY = (
    *(
        _changed_xml(change)
        for change in (_entities, _extreme_number, _extreme_cell, _long_text, _deep, _many_elements, _encoding, mutated)
    ),
    _without_one,
    _twice,
    _renamed,
)
_COSTLY = (_bomb, _many_entries)
_COSTLY_SHARE = 0.02


def repackaged(content: bytes, draws: Random) -> bytes:
    """The package with one to three changes inside, packed again. Damaged bytes if it is no package."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return mutated(content, draws)
    for _ in range(draws.randint(1, 3)):
        if entries:
            chosen = _COSTLY if draws.random() < _COSTLY_SHARE else _ORDINARY
            entries = draws.choice(chosen)(entries, draws)
    return _headers_changed(_packed(entries, draws), draws)


def _packed(entries: Entries, draws: Random) -> bytes:
    out = io.BytesIO()
    method = draws.choice([zipfile.ZIP_DEFLATED] * 6 + [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        # zipfile warns of names that are there twice.
        warnings.simplefilter("ignore")
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name or "x"), content, method)
    return out.getvalue()


def _headers_changed(content: bytes, draws: Random) -> bytes:
    """In one of four packages, a field of one header is another: a size, a method, a flag, an offset."""
    if draws.random() < 0.75:
        return content
    headers = [m.start() for m in re.finditer(rb"PK\x01\x02|PK\x03\x04|PK\x05\x06", content)]
    changed = bytearray(content)
    at = draws.choice(headers) + 4 + draws.randrange(42)
    if at < len(changed):
        changed[at] = draws.choice([0, 1, 0x7F, 0xFF, draws.randrange(256)])
    return bytes(changed)
