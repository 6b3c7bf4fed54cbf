"""Why a collection with documents has no graph."""


def no_graph_yet(collection: str, unread: int, unreadable: int) -> str:
    """Return a sentence for people, by how many chunks are not read yet, and how many could not be read."""
    if unread:
        reason = f"{unread} chunks are still to be read"
    elif unreadable:
        reason = f"{unreadable} chunks could not be read, and no other names an entity"
    else:
        reason = "no document names an entity"
    return f"{collection!r} has no graph yet: {reason}"
