"""Reranking: a last stage of a search, in which a model reads question and chunks together and orders the chunks.

``stage`` is that stage, ``endpoint`` and ``cross_encoder`` are the rerankers, and ``factory`` chooses one or none.
"""
