"""Prompts: change ``prompt_template`` to change what a prompt says, and in which order.

``prompt_template`` has the wording and the order of a prompt's parts. ``layout`` fits the documents into the model's
context and tokenises each part. ``chat_template`` and ``tokenizer`` read the model's own files.
"""
