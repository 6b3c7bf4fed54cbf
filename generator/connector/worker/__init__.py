"""The connector's worker side: carries out jobs over an engine's blocks and the tiers below the GPU."""
