"""Dependency attention (DepCache): a prompt's facts as trees, in which a token attends to its ancestors alone.

``forest`` knows who attends to whom, and which keys the tokens of a forward pass need. ``tree_attention`` stands in for
the engine's attention during that pass. ``branch_cache`` keeps branches' KV for later prompts, and ``tree_composer``
does all of it for one request.
"""
