"""The formats that an answer can be asked for: text, any JSON object, or JSON that follows a schema."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, Field

from gateway.wire.schemas import Text

_ANY_OBJECT = '{"type":"object"}'


def _encodable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        msgspec.json.encode(schema)
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError(f"is not a JSON schema that can be passed on: {error}") from error
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_encodable)]


class PlainText(BaseModel):
    """Any text."""

    type: Literal["text"]

    def to_json_schema(self) -> None:
        """No schema."""


class JsonObject(BaseModel):
    """Any JSON object."""

    type: Literal["json_object"]

    def to_json_schema(self) -> str:
        """The schema of any object, as JSON."""
        return _ANY_OBJECT


class NamedSchema(BaseModel):
    """A JSON schema. Answers always follow it, also if it is not ``strict``."""

    name: Text = ""
    description: Text | None = None
    json_schema: Schema = Field(alias="schema")
    strict: bool | None = None

    def to_json_schema(self) -> str:
        """The schema as JSON."""
        return msgspec.json.encode(self.json_schema).decode()


class JsonSchema(BaseModel):
    """JSON that follows a schema, as chats name it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def to_json_schema(self) -> str:
        """The schema as JSON."""
        return self.json_schema.to_json_schema()


ResponseFormat = Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")]
