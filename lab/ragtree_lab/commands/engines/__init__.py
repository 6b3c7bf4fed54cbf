"""Benchmarks of engines without a stack around them."""
