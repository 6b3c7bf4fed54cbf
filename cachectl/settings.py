"""The controller's part of the configuration."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ControllerSettings(BaseModel):
    """What is kept, how many queries run at once, and how many may wait."""

    model_config = ConfigDict(extra="forbid")

    policy: Literal["NONE"] = Field("NONE", description="What decides which document KV is kept; NONE keeps nothing.")
    max_running: int = Field(32, gt=0, description="Queries that an instance works on at once.")
    max_queued: int = Field(256, ge=0, description="Queries that may wait for their turn; more are refused.")
    lease_s: float = Field(
        900.0, gt=0, description="A plan that was not completed after so many seconds is taken for lost."
    )
