"""Says where the classes are now that a plain vLLM used to load from here."""

raise ImportError(
    "RAGTree's parts for a plain vLLM are a package of their own: install contrib/vllm and name ragtree_vllm.plugin"
)
