"""Decides when and where a query is prefilled, and which documents' KV is kept.

Pure Python with injected clocks: no torch, no vLLM, no Ray. The live stack and the simulator drive the same classes.
"""
