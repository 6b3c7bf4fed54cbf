"""The usage of several answers to one question."""

from collections.abc import Sequence

from gateway.wire.reply import Usage


def usage_of_choices(usages: Sequence[Usage]) -> Usage:
    """The usage of choices, of which the first one's comes first. Their common prompt counts once."""
    prompt_tokens, completion_tokens = usages[0].prompt_tokens, sum(usage.completion_tokens for usage in usages)
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, usages[0].prompt_tokens_details)
