"""The field of an OpenAI request for several answers."""

from typing import Annotated

from pydantic import BaseModel, Field

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
