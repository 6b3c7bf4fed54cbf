"""Composed reuse: a document's KV at any position, on the engine's own layers.

A document's keys and values were computed once, in another prompt. ``attention_layers`` reads them
out of pages and turns the keys to their new positions, and ``partial_forward`` computes some of the tokens again, so
that they see the documents before them. ``selection`` chooses which. ``composer`` does all of it for one request.
"""
