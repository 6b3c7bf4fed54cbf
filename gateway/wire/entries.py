"""A bound on the entries of an object, before they are looked at.

pydantic's own ``max_length`` counts them once all are validated, and describes every invalid one.
"""

from collections.abc import Sized

from pydantic import BeforeValidator


def at_most(count: int) -> BeforeValidator:
    """Refuses objects and lists with more entries."""

    def few(given: object) -> object:
        if isinstance(given, Sized) and not isinstance(given, str) and len(given) > count:
            raise ValueError(f"has {len(given):,} entries; the limit is {count:,}")
        return given

    return BeforeValidator(few)
