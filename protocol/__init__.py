"""The vocabulary of RAGTree: typed messages between its parts, the parts' contracts, and the errors.

Every other package imports this one; this one imports none. Messages are frozen ``msgspec`` structs: they cross
process borders unchanged, and no one edits them in flight.
"""
