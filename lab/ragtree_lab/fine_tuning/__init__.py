"""Trains models: one to dependency attention (``ragtree bench fine-tuning``), an auxiliary one (``bench auxiliary``).

For dependency attention, a model learns to answer from facts that stand in trees (DepCache). ``curriculum`` and
``lessons`` say what is asked, ``exercise`` how, ``inputs`` what the model reads of it; ``tuned_model`` is the model,
``training`` the loop, and ``record`` what was done.
"""
