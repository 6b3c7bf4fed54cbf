"""The KV connector: executes prefill plans inside an unmodified vLLM.

vLLM loads ``connector``, which passes each call to ``scheduler_side`` or ``worker_side``. ``step_jobs`` is the data
between the two sides. ``messages`` is what a request carries into the engine and what a report carries out.
"""
