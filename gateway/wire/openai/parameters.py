"""Parameters of OpenAI's API that RAGTree does not serve.

A request that sets one of them is refused, because its answer would not be what the caller asked for. Values that
change no answer are accepted, since OpenAI's clients send some of them by default.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from protocol.errors import UnsupportedParameter

_LABELS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Parameters that change no answer, whatever their value."""

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "include": ([],),
    "modalities": (["text"],),
    "n": (1,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""Values that ask for nothing, by parameter. So does null, for all parameters."""


class OpenAIBody(BaseModel):
    """A request of an OpenAI client. Parameters that it does not declare are kept, to be refused by name."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    def refuse_unserved(self) -> None:
        """Raise UnsupportedParameter for a parameter that is not served, unless its value asks for nothing."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _LABELS and value not in _WITHOUT_EFFECT.get(name, ()):
                raise UnsupportedParameter(f"RAGTree does not serve {name!r} here; leave it out.", name)
