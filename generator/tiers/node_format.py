"""The format of a node's KV in a file or an object: safetensors, with a tensor of bytes that has one row a page.

The header has a checksum a row. Its length depends on the node alone, so the pages' place is known before their
checksums are.
"""

from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_hexdigest

from generator.tiers.base import Damage, KvBroken
from protocol.kv import KvNode, Paging

LENGTH_BYTES = 8
"""A file begins with the length of what follows in its header, in as many bytes."""

_FORMAT = "ragtree-kv-1"
_ALIGNMENT = 4096
_TENSOR = "kv"


class _Metadata(msgspec.Struct, frozen=True):
    """Metadata as strings, as safetensors requires. ``checksum`` covers all other fields."""

    format: str
    fingerprint: str
    node: str
    page_checksums: str
    checksum: str = ""


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, int]
    data_offsets: tuple[int, int]


class _Header(msgspec.Struct, frozen=True):
    metadata: _Metadata = msgspec.field(name="__metadata__")
    kv: _Tensor = msgspec.field(name=_TENSOR)


class NodeHeader(msgspec.Struct, frozen=True):
    """The decoded header of a file: its node, the pages' checksums, and the offset of the first page in bytes."""

    node: KvNode
    checksums: tuple[int, ...]
    data_at: int


class NodeFormat:
    """The file format of one ``fingerprint``, whose nodes have pages of ``page_bytes`` bytes as ``paging`` says."""

    def __init__(self, fingerprint: str, paging: Paging, page_bytes: int) -> None:
        self._fingerprint = fingerprint
        self._paging = paging
        self.page_bytes = page_bytes

    def pages(self, node: KvNode) -> int:
        """The number of a node's pages."""
        return self._paging.page_count(node.prefix_tokens, node.tokens)

    def file_bytes(self, node: KvNode) -> int:
        """The length of a node's file."""
        pages = self.pages(node)
        return len(self.encode(node, [0] * pages)) + pages * self.page_bytes

    def encode(self, node: KvNode, checksums: Sequence[int]) -> bytes:
        """The header, padded with spaces, as the format allows, so that the pages begin aligned."""
        rows = len(checksums)
        metadata = _Metadata(
            _FORMAT,
            self._fingerprint,
            msgspec.json.encode(node).decode(),
            "".join(f"{checksum:016x}" for checksum in checksums),
        )
        sealed = msgspec.structs.replace(metadata, checksum=xxh3_64_hexdigest(msgspec.json.encode(metadata)))
        tensor = _Tensor("U8", (rows, self.page_bytes), (0, rows * self.page_bytes))
        body = msgspec.json.encode(_Header(sealed, tensor))
        length = -(-(LENGTH_BYTES + len(body)) // _ALIGNMENT) * _ALIGNMENT - LENGTH_BYTES
        return length.to_bytes(LENGTH_BYTES, "little") + body.ljust(length)

    def header_bytes(self, start: bytes, size: int) -> int:
        """The length of the header of a file of ``size`` bytes, whose first ``LENGTH_BYTES`` are ``start``.

        Raises KvBroken if the file is shorter than its header.
        """
        length = LENGTH_BYTES + int.from_bytes(start, "little")
        if len(start) < LENGTH_BYTES or length > size:
            raise KvBroken(Damage.SIZE, "the file is shorter than its header")
        return length

    def decode(self, header: bytes, size: int) -> NodeHeader:
        """The decoded header of a file of ``size`` bytes. Raises KvBroken if it is damaged or the size is wrong."""
        try:
            metadata = msgspec.json.decode(header[LENGTH_BYTES:], type=_Header).metadata
            node = msgspec.json.decode(metadata.node, type=KvNode)
            digits = metadata.page_checksums
            checksums = tuple(int(digits[at : at + 16], 16) for at in range(0, len(digits), 16))
        except (msgspec.DecodeError, ValueError) as error:
            raise KvBroken(Damage.HEADER, f"the header does not parse: {error}") from error
        if (metadata.format, metadata.fingerprint) != (_FORMAT, self._fingerprint):
            raise KvBroken(
                Damage.FOREIGN, f"the file has fingerprint {metadata.fingerprint!r} and format {metadata.format!r}"
            )
        # Encoding what was decoded gives the same bytes only if every byte of the header is intact.
        if len(checksums) != self.pages(node) or header != self.encode(node, checksums):
            raise KvBroken(Damage.HEADER, "the header does not match its checksum")
        if size != len(header) + len(checksums) * self.page_bytes:
            raise KvBroken(Damage.SIZE, f"the file has {size} bytes, which does not match its header")
        return NodeHeader(node, checksums, len(header))
