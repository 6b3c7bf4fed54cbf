"""What prefills and KV transfers cost on one device with one model.

The shipped profile ``a10g-7b`` is for simulators. It is not measured but derived from what RAGCache (Jin et al. 2024,
arXiv 2404.12457) publishes of a 7B model on an A10G. Its times are those of the formula

    T(c, n) = launch + linear * n + attention * n * (c + n / 2)

at its grid points, rounded to microseconds:

- ``launch`` = 79.8 ms is what a pass costs before its first token: reading the weights once, launching kernels, and the
  engine's own step.
- ``linear`` = 213 us per token is the matrix products.
- ``attention`` = 8.6 ns per pair of a new token and a token it attends to.

A layer of width d costs 24 d^2 flop per token and 4 d per pair, which fixes attention / linear near 4e-5 for d = 4096.
Published figures fix the rest:

    T(0, 4000)                  = 1.00 s       about a second for 4,000 new tokens
    T(0, 4032) / T(4000, 32)    = 11.5         computing everything, against a question of 32 tokens after 4,000 cached
    T(0, 4032) / (load + T(4000, 32)) = 3.9    the same, with the 4,000 loaded from host memory first

The last one fixes load = 171 ms for 4,000 tokens of LLaMA-2-7B at 512 KiB each: 12.27 GB/s, 38 % of the nominal 32 GB/s
of PCIe 4.0 x16. RAGCache publishes no rate of the disk; 2 GB/s is an assumption about an NVMe drive.
"""

import math
from importlib import resources
from pathlib import Path
from typing import Self

import msgspec

from cachectl.costs.prefill_grid import PrefillGrid
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.atomic_files import write_atomically
from protocol.errors import ConfigError, InvalidRequest
from protocol.tiers import Tier

_PEER_BYTES_PER_S = 1e9


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What prefills and KV transfers cost on one kind of device with one model.

    ``source`` says where the numbers come from. ``host_bytes_per_s`` is the rate from host memory to the device,
    ``disk_bytes_per_s`` the rate from disk to host memory, and ``kv_bytes_per_token`` the size of one token's KV in all
    layers. Raises ConfigError if one of these is not positive and finite.
    """

    name: str
    source: str
    host_bytes_per_s: float
    disk_bytes_per_s: float
    kv_bytes_per_token: int
    grid: PrefillGrid

    def __post_init__(self) -> None:
        for field in ("host_bytes_per_s", "disk_bytes_per_s", "kv_bytes_per_token"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field} must be positive and finite, not {value}", field)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a profile from a JSON file, as ``save`` writes it. Raises ConfigError naming the file."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the device profile {path} cannot be read: {error.strerror}") from error
        return cls._decoded(content, str(path))

    @classmethod
    def shipped(cls, name: str) -> Self:
        """Load a profile that ships with RAGTree. This module describes ``a10g-7b``.

        Raises ConfigError, naming the file and the shipped profiles.
        """
        files = {file.name: file for file in resources.files("cachectl").joinpath("costs", "profiles").iterdir()}
        file = files.get(f"{name}.json")
        if file is None:
            known = ", ".join(sorted(file.removesuffix(".json") for file in files if file.endswith(".json")))
            raise ConfigError(f"there is no device profile {name}.json; shipped are: {known}")
        return cls._decoded(file.read_bytes(), file.name)

    def save(self, path: Path) -> None:
        """Write the profile atomically: a reader finds the old file or the new one. Raises OSError."""
        content = msgspec.json.format(msgspec.json.encode(self))
        # The caches of a machine are for all of its users.
        write_atomically(path, content, b"\n", mode=0o644)

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """Seconds to prefill ``new_tokens`` after ``cached_tokens`` on the device, by ``PrefillGrid.seconds``."""
        return self.grid.seconds(cached_tokens, new_tokens)

    def load_seconds(self, tokens: int, tier: Tier) -> float:
        """Seconds to load the KV of ``tokens`` from ``tier`` to the device: bytes over rates.

        KV on the device takes no time. KV on disk is copied to host memory first and then to the device, so an engine
        that overlaps the two is faster. Raises InvalidRequest for negative tokens.
        """
        if tokens < 0:
            raise InvalidRequest(f"tokens to load must not be negative: {tokens}")
        size = tokens * self.kv_bytes_per_token
        if tier == Tier.GPU:
            return 0.0
        if tier == Tier.HOST:
            return size / self.host_bytes_per_s
        return size / self.disk_bytes_per_s + size / self.host_bytes_per_s

    @property
    def costs(self) -> TreeCosts:
        """What the tree reckons with. Unmeasured links are taken to carry 1 GB/s, as those of 10 Gbit/s do."""
        peer_token_s = self.kv_bytes_per_token / _PEER_BYTES_PER_S
        return TreeCosts(self.prefill_seconds, self.load_seconds, peer_token_s)

    @classmethod
    def _decoded(cls, content: bytes, file: str) -> Self:
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"the device profile {file} is broken: {error}") from error
