"""Settings of a part some of whose fixed values a test has changed."""

from typing import Any, TypeVar

from pydantic import BaseModel

S = TypeVar("S", bound=BaseModel)


def varied(kind: type[S], /, **options: Any) -> S:
    """Settings of this kind with these options, some of which may be values that nobody else can set."""
    fixed = {}
    for name in kind.__class_vars__:
        value = getattr(kind, name)
        if name in options:
            fixed[name] = options.pop(name)
        elif isinstance(value, tuple):
            fields = [field for field in value._fields if field in options]
            fixed[name] = value._replace(**{field: options.pop(field) for field in fields})
    return type(kind.__name__, (kind,), fixed)(**options)
