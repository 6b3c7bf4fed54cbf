"""Fine-tunes a model to dependency attention: it learns to answer from facts that stand in trees (DepCache).

``exercise`` is what is asked, ``inputs`` what the model reads of it, ``tuned_model`` the model, and ``training`` the
loop. ``record`` says what was done.
"""
