"""Fields that bodies of several of OpenAI's endpoints have."""

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.search.follow_ups import FollowUps

MAX_CHOICES = 16


class ChoiceFields(BaseModel):
    """How many answers the reply has."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description="Number of answers, from the same documents. Above 1, it needs a `temperature`."
    )

    @property
    def choices(self) -> int:
        """The number of answers, 1 by default."""
        return self.n or 1


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class StreamFields(BaseModel):
    """Whether the answer is streamed, and whether the stream ends with its usage."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ConversationFields(BaseModel):
    """How the last question of a conversation is searched."""

    follow_ups: FollowUps | None = Field(
        default=None,
        description="`alone`: a question that follows another is searched as it is. `joined`: together with those "
        "before it. `rewritten`: as a question that the model makes of them.",
    )
