"""Names of namespaces: as messages carry them, and as the knowledge tree has them."""


class Namespaces:
    """Adds the ``fingerprint`` of the KV to every namespace inside the tree, and takes it off again.

    The fingerprint becomes part of every node's key, so KV of another model or layout is never found. ``seen`` are the
    namespaces that had a plan or were restored, without the fingerprint: an engine's own cache may hold KV of them.
    """

    def __init__(self, fingerprint: str = "") -> None:
        self.prefix = f"{fingerprint}/" if fingerprint else ""
        self.seen: set[str] = set()

    def inside(self, namespace: str) -> str:
        """The tree's name of a namespace."""
        return self.prefix + namespace

    def outside(self, namespace: str) -> str:
        """The messages' name of a namespace of the tree."""
        return namespace.removeprefix(self.prefix)
