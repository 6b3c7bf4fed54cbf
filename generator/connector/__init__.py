"""The KV connector: executes prefill plans inside an unmodified vLLM.

vLLM loads ``connector``, which passes its calls to ``scheduler/`` and ``worker/``. ``step_jobs`` is the data
between the two sides. ``messages`` is what a request carries into the engine and what a report carries out.
"""
