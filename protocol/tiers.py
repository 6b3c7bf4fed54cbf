"""The tiers that hold KV."""

from enum import StrEnum


class Tier(StrEnum):
    """A kind of memory that holds documents' KV, fastest first: an instance's own GPU, then the machine's shared tiers.

    On a machine without a GPU, the first tier is the memory of the engine's paged KV cache.
    """

    GPU = "gpu"
    HOST = "host"
    DISK = "disk"
