"""A digest of a model's files that tells models apart without reading all of their weights."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

_TEXTS = {".json", ".model", ".txt", ".py"}
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}

_WHOLE_BYTES = 512 << 20
"""Smaller weights are read as a whole."""
_SAMPLED_BYTES = 256 << 20
"""The most bytes that are read of larger ones, besides the headers."""
_SAMPLES = 16384
"""This number of samples is spread evenly over the weights, besides those at three places of each tensor."""
_PLACES = 3
_CHUNK_BYTES = 1 << 20
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 << 20
"""In bytes. The safetensors library refuses longer ones too."""


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


class _Region(NamedTuple):
    """Bytes of a file from ``begin`` to ``end``: a tensor, or all of a file whose tensors are not known."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def digest_of_model(path: Path) -> str:
    """A digest of a model's folder, or of its only file. Copies of a model have the same digest. Raises OSError.

    Texts, such as the configuration and the tokenizer, enter in full, and so do weights of up to 512 MiB together. Of
    larger weights, names, sizes, safetensors headers, and 256 MiB of samples enter: the beginning, the middle and the
    end of each tensor, and 16,384 samples spread evenly, which is one for each MB of a model of 16 GB.

    A tensor that has changed as a whole is noticed. A change between two samples is not.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    weights = [file for file in files if file.suffix in _WEIGHTS and file.is_file()]
    texts = [file for file in files if file.suffix in _TEXTS and file.is_file()]
    digest = blake3()
    for file in texts:
        _begin(digest, file)
        _add(digest, file, [_Region(0, file.stat().st_size)])
    regions = {file: _regions(file) for file in weights}
    everything = [region for of_file in regions.values() for region in of_file]
    sampling = _Sampling(sum(region.size for region in everything), len(everything))
    for file, of_file in regions.items():
        _begin(digest, file)
        # A safetensors file begins with its header, which enters in full.
        header = _Region(0, min(region.begin for region in of_file) if of_file else 0)
        _add(digest, file, [header, *(sample for region in of_file for sample in sampling.of(region))])
    return digest.hexdigest()


class _Sampling:
    """Where weights of ``total_bytes`` bytes in ``regions`` regions are read."""

    def __init__(self, total_bytes: int, regions: int) -> None:
        self._total = total_bytes
        self._whole = total_bytes <= _WHOLE_BYTES
        # Even the most samples that the regions can have together do not exceed the bytes to be read.
        self._sample_bytes = max(1, _SAMPLED_BYTES // (_SAMPLES + (_PLACES + 1) * regions))

    def of(self, region: _Region) -> Iterator[_Region]:
        """The parts of a region to be read, in order."""
        count = max(_PLACES, -(-region.size * _SAMPLES // max(1, self._total)))
        if self._whole or count * self._sample_bytes >= region.size:
            yield region
            return
        room = region.size - self._sample_bytes
        for number in range(count):
            begin = region.begin + room * number // (count - 1)
            yield _Region(begin, begin + self._sample_bytes)


def _regions(file: Path) -> list[_Region]:
    """The tensors of a safetensors file in order; any other file as one region."""
    size = file.stat().st_size
    if file.suffix == ".safetensors":
        with file.open("rb") as content:
            length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
            data_at = _LENGTH_BYTES + length
            header = content.read(length) if data_at <= size and length <= _LONGEST_HEADER else b""
        tensors = _tensors(header)
        found = sorted(_Region(data_at + begin, data_at + end) for begin, end in tensors)
        if found and all(data_at <= region.begin <= region.end <= size for region in found):
            return found
    return [_Region(0, size)]


def _tensors(header: bytes) -> list[tuple[int, int]]:
    """Where a header says that its tensors begin and end, after the header. Nothing if it cannot be read."""
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return [
            msgspec.json.decode(entry, type=_Tensor).data_offsets
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except msgspec.DecodeError:
        return []


def _begin(digest: blake3, file: Path) -> None:
    digest.update(f"{file.name}:{file.stat().st_size}:".encode())


def _add(digest: blake3, file: Path, parts: Sequence[_Region]) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for part in parts:
            # Reads ahead, which makes samples from a disk four times as fast.
            os.posix_fadvise(descriptor, part.begin, part.size, os.POSIX_FADV_WILLNEED)
        for part in parts:
            for at in range(part.begin, part.end, _CHUNK_BYTES):
                digest.update(os.pread(descriptor, min(_CHUNK_BYTES, part.end - at), at))
    finally:
        os.close(descriptor)
