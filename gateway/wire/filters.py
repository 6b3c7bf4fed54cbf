"""Metadata filters as requests spell them, in OpenAI's shape."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from protocol import filters as protocol_filters
from protocol.filters import AttributeValue

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Value = StrictBool | float | StrictStr


class ComparisonFilter(BaseModel):
    """One attribute held against a single value."""

    model_config = _STRICT
    key: str = Field(min_length=1, max_length=256)
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    value: Value

    def to_protocol(self) -> protocol_filters.Filter:
        """The filter as the retriever takes it."""
        return protocol_filters.Comparison(self.key, self.type, self.value)


class MembershipFilter(BaseModel):
    """One attribute held against a list of values."""

    model_config = _STRICT
    key: str = Field(min_length=1, max_length=256)
    type: Literal["in", "nin"]
    value: list[Value] = Field(max_length=1000)

    def to_protocol(self) -> protocol_filters.Filter:
        """The filter as the retriever takes it."""
        values: tuple[AttributeValue, ...] = tuple(self.value)
        return protocol_filters.Comparison(self.key, self.type, values)


class CompoundFilter(BaseModel):
    """Filters of which all (``and``) or at least one (``or``) must hold."""

    model_config = _STRICT
    type: Literal["and", "or"]
    filters: list["RequestFilter"] = Field(min_length=1, max_length=100)

    def to_protocol(self) -> protocol_filters.Filter:
        """The filter as the retriever takes it."""
        return protocol_filters.Compound(self.type, tuple(inner.to_protocol() for inner in self.filters))


def as_requested(given: protocol_filters.Filter) -> dict[str, object]:
    """A filter of the protocol as a request would spell it, fit for JSON."""
    if isinstance(given, protocol_filters.Compound):
        return {"type": given.op, "filters": [as_requested(inner) for inner in given.filters]}
    return {"key": given.key, "type": given.op, "value": given.value}


RequestFilter = Annotated[ComparisonFilter | MembershipFilter | CompoundFilter, Field(discriminator="type")]
CompoundFilter.model_rebuild()
