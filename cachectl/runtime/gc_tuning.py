"""Tuning of Python's garbage collector for a process that holds a tree of a million objects.

A full collection over 300,000 nodes stops the process for a second. The tree does not need it: reference counting frees
what leaves it. So requests only pay for collections of young objects, and full ones run while the process is idle.
"""

import gc

# Python counts objects made less objects freed. A full tree frees about as many as it makes, so a collection finds many
# times this number of young objects. At 10,000 it delays one request in some thousands by 40 ms; at 500, more than one
# in a thousand by 3 ms.
_YOUNG, _MIDDLE, _NEVER = 5_000, 5, 1_000_000


def spare_full_collections() -> None:
    """Collect young objects often and old ones never, for the whole process. Call ``collect_while_idle`` for those."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def collect_while_idle() -> None:
    """Collect everything allocated since the last call, and exempt what survives from later collections."""
    gc.collect()
    gc.freeze()
