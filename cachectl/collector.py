"""Python's garbage collector beside a tree of a million objects: kept from looking at all of them in a request's time.

A full collection over 300,000 nodes stops the process for a second. The tree needs none: what leaves it is freed by its
reference count. So only young objects are collected on the way, and the rest when nothing else is to be done.
"""

import gc

_YOUNG, _MIDDLE, _NEVER = 10_000, 10, 1_000_000


def spare_full_collections() -> None:
    """Collect young objects some ten thousand at a time, and old ones only by ``collect_while_idle``, process-wide."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def collect_while_idle() -> None:
    """Collect everything that came since the last call, and never look at what survived again."""
    gc.collect()
    gc.freeze()
