"""Python's garbage collector beside a tree of a million objects: kept from looking at all of them in a request's time.

A full collection over 300,000 nodes stops the process for a second. The tree needs none: what leaves it is freed by its
reference count. So only young objects are collected on the way, and the rest when nothing else is to be done.
"""

import gc

# Python counts objects made less objects freed, and a full tree frees about as many as it makes: many times this number
# are young when a collection comes. At 10,000 it stops one request in some thousands for 40 ms; at 500, more than one
# in a thousand for 3 ms.
_YOUNG, _MIDDLE, _NEVER = 5_000, 5, 1_000_000


def spare_full_collections() -> None:
    """Collect young objects often, so that it takes little each time, and old ones only while idle; process-wide."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def collect_while_idle() -> None:
    """Collect everything that came since the last call, and never look at what survived again."""
    gc.collect()
    gc.freeze()
