"""Fields that requests with a conversation share."""

from pydantic import BaseModel, Field

from gateway.search.follow_ups import FollowUps


class ConversationFields(BaseModel):
    """How the last question of a conversation is searched."""

    follow_ups: FollowUps | None = Field(
        default=None,
        description="`alone`: a question that follows another is searched as it is. `joined`: together with those "
        "before it. `rewritten`: as a question that the model makes of them.",
    )
