"""Vector indexes: the interface, its implementations, and the catalog with one index per collection.

``base`` is the interface. ``builder`` chooses the implementation for a collection: ``flat``, ``ivf``, ``mapped_ivf`` or
``hnsw``.
"""
