"""Metadata filters of requests, in OpenAI's format."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from gateway.wire.entries import at_most
from protocol import filters as protocol_filters
from protocol.filters import AttributeValue

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

_FIELDS = 8
"""No filter has more fields."""

Value = StrictBool | float | StrictStr


class ComparisonFilter(BaseModel):
    """Compares an attribute with a value."""

    model_config = _STRICT
    key: str = Field(min_length=1, max_length=256)
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    value: Value

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        return protocol_filters.Comparison(self.key, self.type, self.value)


class MembershipFilter(BaseModel):
    """Compares an attribute with a list of values."""

    model_config = _STRICT
    key: str = Field(min_length=1, max_length=256)
    type: Literal["in", "nin"]
    value: Annotated[list[Value], Field(fail_fast=True)] = Field(max_length=1000)

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        values: tuple[AttributeValue, ...] = tuple(self.value)
        return protocol_filters.Comparison(self.key, self.type, values)


class CompoundFilter(BaseModel):
    """Filters of which all (``and``) or at least one (``or``) must match."""

    model_config = _STRICT
    type: Literal["and", "or"]
    filters: Annotated[list["RequestFilter"], Field(fail_fast=True)] = Field(min_length=1, max_length=100)

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        return protocol_filters.Compound(self.type, tuple(inner.to_protocol() for inner in self.filters))


def as_requested(given: protocol_filters.Filter) -> dict[str, object]:
    """Convert the retriever's filter to the request's format, as JSON values."""
    if isinstance(given, protocol_filters.Compound):
        return {"type": given.op, "filters": [as_requested(inner) for inner in given.filters]}
    return {"key": given.key, "type": given.op, "value": given.value}


RequestFilter = Annotated[
    ComparisonFilter | MembershipFilter | CompoundFilter, Field(discriminator="type"), at_most(_FIELDS)
]
CompoundFilter.model_rebuild()
