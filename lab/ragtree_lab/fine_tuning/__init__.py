"""`ragtree bench fine-tuning`: questions over facts, as exercises for a model's fine-tuning to dependency attention.

The training itself is `generator/composing/dependency/fine_tuning/`.
"""
