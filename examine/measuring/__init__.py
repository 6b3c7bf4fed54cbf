"""What examinations and benchmarks measure with: engines, tiers, answers, statistics."""
