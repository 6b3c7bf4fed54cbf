"""How the last question of a conversation is searched."""

from enum import StrEnum

EARLIER_QUESTIONS = 1
"""Questions of a conversation that its last one is searched with, unless it is searched alone."""


class FollowUps(StrEnum):
    """What a follow-up is searched with.

    ``alone``: with itself. ``joined``: with the questions before it. ``rewritten``: with a question that the model
    makes of it and of what was said before; where that fails, as ``joined``.
    """

    ALONE = "alone"
    JOINED = "joined"
    REWRITTEN = "rewritten"
