"""The vocabulary of RAGTree: typed messages that pass between its parts, the parts' contracts, and the error tree.

Every other package imports this one, and this one imports none of them. Messages are frozen ``msgspec`` structs: they
cross process borders unchanged, and nobody edits one in flight.
"""
