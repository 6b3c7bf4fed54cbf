"""Mutations of bytes that know nothing of their format."""

from random import Random

_MARKS = [
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"%PDF-1.7\n",
    b"PK\x03\x04",
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>',
    b"\x1f\x8b",
    b'<?xml version="1.0" encoding="utf-7"?>',
]
_MOST_REPEATED = 60_000


def flipped(content: bytes, draws: Random) -> bytes:
    """Some bits turned over."""
    changed = bytearray(content)
    for _ in range(draws.choice([1, 4, 32])):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def truncated(content: bytes, draws: Random) -> bytes:
    """The beginning alone."""
    return content[: draws.randrange(len(content))]


def swapped(content: bytes, draws: Random) -> bytes:
    """Two pieces in each other's place."""
    a, b, c, d = sorted(draws.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def repeated(content: bytes, draws: Random) -> bytes:
    """One piece many times."""
    a, b = sorted(draws.randrange(len(content) + 1) for _ in range(2))
    piece = content[a:b] or b"!"
    times = min(draws.choice([2, 50, 5000]), _MOST_REPEATED // len(piece) + 1)
    return content[:a] + piece * times + content[b:]


def marked(content: bytes, draws: Random) -> bytes:
    """Another format's mark in front, behind or in the middle."""
    at = draws.choice([0, len(content), draws.randrange(len(content))])
    return content[:at] + draws.choice(_MARKS) + content[at:]


def numbers_changed(content: bytes, draws: Random) -> bytes:
    """Numbers in the text replaced by extreme ones."""
    digits = [n for n, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return flipped(content, draws)
    at = draws.choice(digits)
    end = at
    while end < len(content) and 48 <= content[end] <= 57:
        end += 1
    return content[:at] + draws.choice([b"0", b"-1", b"4294967296", b"9" * 30, b"1e999", b""]) + content[end:]


BYTES = (flipped, truncated, swapped, repeated, marked, numbers_changed)


def mutated(content: bytes, draws: Random) -> bytes:
    """One to three of these mutations."""
    for _ in range(draws.randint(1, 3)):
        content = draws.choice(BYTES)(content, draws) if content else b"\x00"
    return content
