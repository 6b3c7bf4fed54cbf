"""The generator: lays out prompts, and runs the engines that execute prefill plans.

It takes no caching decisions: a plan says what to do, and the generator reports what was done. This is the only package
that imports torch and vLLM, and only when an engine starts, so that laying out prompts is cheap in processes without a
model.
"""
