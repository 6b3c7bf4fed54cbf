"""A node as a compact record: MessagePack, with hexadecimal texts as their bytes.

A content hash takes 35 bytes. The longest path of a query of the stack, with 101 segments, takes 3.5 KB.
"""

import msgspec

from protocol.kv import KvNode

_HEXADECIMAL = b"x"
_PLAIN = b"t"
"""A text's first byte says which of the two it is."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a ``KvNode``, with packed texts."""

    key: bytes
    namespace: bytes
    path: tuple[bytes, ...]
    prefix_tokens: int
    tokens: int


def encode_node(node: KvNode) -> bytes:
    """The record of a node."""
    path = tuple(_pack(content) for content in node.path)
    return msgspec.msgpack.encode(
        _Record(_pack(node.key), _pack(node.namespace), path, node.prefix_tokens, node.tokens)
    )


def decode_node(record: bytes) -> KvNode | None:
    """The node of a record, or None if the bytes are not one."""
    try:
        fields = msgspec.msgpack.decode(record, type=_Record)
        path = tuple(_unpack(content) for content in fields.path)
        return KvNode(_unpack(fields.key), _unpack(fields.namespace), path, fields.prefix_tokens, fields.tokens)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _pack(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    # Only lower-case digits without spaces come back as they were.
    return _HEXADECIMAL + raw if raw.hex() == text else _PLAIN + text.encode("utf-8", "surrogatepass")


def _unpack(packed: bytes) -> str:
    body = packed[1:]
    return body.hex() if packed.startswith(_HEXADECIMAL) else body.decode("utf-8", "surrogatepass")
