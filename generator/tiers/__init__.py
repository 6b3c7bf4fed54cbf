"""The memory tiers below the GPU: host memory, disk and none, behind one contract (``base``)."""
