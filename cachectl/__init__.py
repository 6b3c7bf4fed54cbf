"""The brain of RAGTree: it decides when and where a query is prefilled, and which document KV is kept.

Pure Python on an injected clock: no torch, no vllm, no ray, no wall time. The live stack and a simulator drive the
same classes.
"""
