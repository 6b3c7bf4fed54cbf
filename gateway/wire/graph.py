"""Replies with a part of a collection's graph."""

from typing import Literal

import msgspec

from protocol.graph import GraphView


class GraphReply(GraphView, frozen=True, kw_only=True):
    """A part of a collection's graph.

    ``entities`` are the nearest first, or else the most mentioned. ``mentions`` is how many statements mention one, and
    ``depth`` how many relations lead to it. ``relations`` are between these entities; chunk ``index`` of
    ``document_id`` states one. ``truncated`` says that a limit left something out. ``size`` is that of the whole graph,
    and ``unread_chunks`` is how many chunks of the collection it does not know yet. It has nothing of
    ``unreadable_chunks``, because what read them gave no usable answer.
    """

    object: Literal["graph"] = "graph"
    collection: str

    @classmethod
    def of(cls, view: GraphView, collection: str) -> "GraphReply":
        """Make the reply from a view of this collection's graph."""
        return cls(**msgspec.structs.asdict(view), collection=collection)
