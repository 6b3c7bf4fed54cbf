"""The hands of RAGTree: prompt layout and the engines that execute prefill plans.

Nothing here takes a caching decision; a plan says what to do, and the generator reports what became true. This is the
only package that imports torch and vllm, and it imports them when an engine starts, so that laying out prompts stays
cheap for processes that hold no model.
"""
