"""How many examples the property tests try: a third in ``make test``, all in ``make prove``."""

import os

_SHARE = 1 if os.environ.get("RAGTREE_TEST_ALL_EXAMPLES") else 3


def examples(count: int) -> int:
    """The part of ``count`` examples that this run tries."""
    return max(1, count // _SHARE)
