"""Workloads of benchmarks: question sets, traces and generated requests."""
