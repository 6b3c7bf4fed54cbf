"""`ragtree doctor`: examines a machine, its model and its engine (docs/guides/doctor.md).

Checks measure against a baseline in the same run, with the tools of the benchmarks. That is why they are here.
"""
