"""Moments in the history of a store of documents. They order searches and deletions, which clocks cannot."""

from typing import TypeAlias

import msgspec


class StoreRevision(msgspec.Struct, frozen=True):
    """The state of a store right after the deletion with this ``number``; 0 is before the first one.

    A store numbers the contents that it loses, in the transaction that loses them, and uses no number twice. ``store``
    is its name, which it keeps as long as its data. One that is made anew has another name. Revisions of two stores
    have no order.
    """

    store: str
    number: int


Revisions: TypeAlias = tuple[StoreRevision, ...]
"""One of each store that documents were read from."""
