"""Mutations of PDF documents: their objects, references, streams and cross-references."""

import re
import zlib
from collections.abc import Callable
from random import Random

from ragtree_lab.fuzz.files.mutations import mutated

_OBJECT = re.compile(rb"\d+ \d+ obj\b.*?endobj", re.DOTALL)
_REFERENCE = re.compile(rb"\b\d+ 0 R\b")
_NUMBER = re.compile(rb"(?<=[\s\[])-?\d+(?:\.\d+)?(?=[\s\]/>])")
_STREAM = re.compile(rb"stream\r?\n.*?endstream", re.DOTALL)
_EXTREMES = [b"0", b"-1", b"4294967296", b"1e30", b"9" * 40, b"0.0000000001"]
_STREAM_MIB = [1, 8, 200]
_BOMB_SHARE = 0.02


def _one(pattern: re.Pattern[bytes], content: bytes, change: Callable[[bytes], bytes], draws: Random) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return mutated(content, draws)
    at = draws.choice(found)
    return content[: at.start()] + change(at.group()) + content[at.end() :]


def _reference(content: bytes, draws: Random) -> bytes:
    """A reference to another object, often to one that holds it: cycles of pages, fonts and lengths."""
    return _one(_REFERENCE, content, lambda _: b"%d 0 R" % draws.choice([0, 1, 2, 3, 4, 5, 6, 7, 10**9]), draws)


def _number(content: bytes, draws: Random) -> bytes:
    return _one(_NUMBER, content, lambda _: draws.choice(_EXTREMES), draws)


def _without_object(content: bytes, draws: Random) -> bytes:
    return _one(_OBJECT, content, lambda _: b"", draws)


def _object_twice(content: bytes, draws: Random) -> bytes:
    return _one(_OBJECT, content, lambda whole: whole + b"\n" + mutated(whole, draws), draws)


def _deep_array(content: bytes, draws: Random) -> bytes:
    depth = draws.choice([50, 2000, 50_000])
    return _one(_OBJECT, content, lambda whole: whole[:-6] + b"[" * depth + b"]" * depth + b"endobj", draws)


def _many_kids(content: bytes, draws: Random) -> bytes:
    count = draws.choice([10, 1000, 50_000])
    return re.sub(rb"/Kids\s*\[([^\]]*)\]", lambda m: b"/Kids [" + (m.group(1) + b" ") * count + b"]", content, count=1)


def _stream(content: bytes, draws: Random) -> bytes:
    """Another stream: text operators without end, or zeros that unpack to far more than they take."""
    mib = draws.choice(_STREAM_MIB) if draws.random() < _BOMB_SHARE else 0
    made = draws.choice(
        [
            b"BT /F1 1 Tf " + b"(a) Tj 1 0 Td " * draws.choice([10, 20_000]) + b"ET",
            b"q " * draws.choice([100, 100_000]),
            b"[" * 20_000,
            zlib.compress(b" " * (mib << 20 or 1000)),
            zlib.compress(zlib.compress(b"BT (a) Tj ET " * 1000)),
        ]
    )
    return _one(_STREAM, content, lambda _: b"stream\n" + made + b"\nendstream", draws)


def _filters(content: bytes, draws: Random) -> bytes:
    names = [
        b"/ASCII85Decode",
        b"/FlateDecode",
        b"/LZWDecode",
        b"/ASCIIHexDecode",
        b"/RunLengthDecode",
        b"/DCTDecode",
        b"/JBIG2Decode",
        b"/Crypt",
    ]
    chain = b"[ " + b" ".join(draws.choices(names, k=draws.choice([1, 3, 300]))) + b" ]"
    return re.sub(rb"/Filter\s*(\[[^\]]*\]|/\w+)", lambda _: b"/Filter " + chain, content, count=1)


def _cross_references(content: bytes, draws: Random) -> bytes:
    at = content.rfind(b"startxref")
    if at < 0:
        return mutated(content, draws)
    offset = draws.choice([0, -1, at, len(content), 10**18, draws.randrange(len(content))])
    return content[:at] + b"startxref\n%d\n%%%%EOF" % offset


def _loop_of_tables(content: bytes, _draws: Random) -> bytes:
    at = content.rfind(b"xref", 0, max(content.rfind(b"startxref"), 0))
    return content.replace(b"trailer\n<<", b"trailer\n<< /Prev %d" % max(at, 0), 1)


def _encrypted(content: bytes, draws: Random) -> bytes:
    entry = b"/Encrypt << /Filter /Standard /V %d /R %d /O (x) /U (x) /P -1 /Length %d >>"
    filled = entry % (draws.choice([1, 2, 5, 99]), draws.choice([2, 3, 6]), draws.choice([40, 128, 10**9]))
    return content.replace(b"trailer\n<<", b"trailer\n<< " + filled, 1)


_CHANGES = (
    _reference,
    _reference,
    _number,
    _without_object,
    _object_twice,
    _deep_array,
    _many_kids,
    _stream,
    _stream,
    _filters,
    _cross_references,
    _loop_of_tables,
    _encrypted,
    mutated,
)


def reworked(content: bytes, draws: Random) -> bytes:
    """The document with one to three changes of its objects."""
    for _ in range(draws.randint(1, 3)):
        content = draws.choice(_CHANGES)(content, draws) if content else b"%PDF-1.7"
    return content
