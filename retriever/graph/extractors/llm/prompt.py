"""What a language model is asked about a passage, and the form of its answer."""

from typing import Final

from openai.types.chat import ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema

from retriever.store.incoming import SourceText

PROMPT_VERSION = 1
"""Raise it when other triplets are asked for."""

_MOST_TRIPLETS = 32
"""Of one passage. A chunk of 512 tokens states fewer."""

_SYSTEM = f"""\
You write down the facts that a passage states, as triplets of a head, a relation and a tail.

- Head and tail are names: of a person, place, organisation, work, event, date or term. Write them as the passage does.
- Where the passage says "he", "she", "it" or the like, write the name that is meant. The title may tell it.
- The relation is a short phrase around a verb, such as "was born in".
- Write only what the passage states. Write the most important facts first, and at most {_MOST_TRIPLETS}.

Answer with JSON alone, in this form:
{{"triplets": [{{"head": "...", "relation": "...", "tail": "..."}}]}}
If the passage states no fact, answer {{"triplets": []}}."""

_AGAIN = "\n\nAnswer with the JSON object alone, and end it."
"""Without it, a second attempt at temperature 0 mostly gets the first one's answer."""

_TEXT = {"type": "string"}
_TRIPLET = {
    "type": "object",
    "properties": {"head": _TEXT, "relation": _TEXT, "tail": _TEXT},
    "required": ["head", "relation", "tail"],
    "additionalProperties": False,
}
TRIPLETS_FORMAT: Final[ResponseFormatJSONSchema] = {
    "type": "json_schema",
    "json_schema": {
        "name": "triplets",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"triplets": {"type": "array", "items": _TRIPLET}},
            "required": ["triplets"],
            "additionalProperties": False,
        },
    },
}
"""The ``response_format`` of an answer."""


def messages_about(source: SourceText, again: bool = False) -> list[ChatCompletionMessageParam]:
    """Return the messages that ask for the triplets of a chunk, ``again`` if the first answer was not readable."""
    title = f"Title: {source.title}\n\n" if source.title else ""
    asked = f"{title}Passage:\n{source.text}"
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked + _AGAIN if again else asked}]
