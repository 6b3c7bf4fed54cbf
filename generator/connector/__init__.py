"""The KV connector: executes prefill plans inside of an unmodified vLLM.

``connector`` is what vLLM loads; ``scheduler_half`` and ``worker_half`` do its two kinds of work, and ``metadata`` is
what passes between them. ``orders`` is what the engine is told with a request and what it tells back.
"""
