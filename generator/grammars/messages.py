"""What the process that tries schemas is told, and what it answers."""

import re

import msgspec

PLACE_IN_SOURCE = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""The time and the line of C++ before messages of xgrammar."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What an engine compiles schemas with: its tokens, as xgrammar serialises them, and how answers space JSON."""

    tokenizer_info: str
    any_whitespace: bool
    separators: tuple[str, str] | None


class Limits(msgspec.Struct, frozen=True):
    """What the trial of one schema may use: seconds of processor time and of time, bytes beside what is loaded.

    ``mask_s`` is the processor time that the mask of one token may take.
    """

    cpu_s: int
    wall_s: int
    memory_bytes: int
    stack_bytes: int
    mask_s: float


class Request(msgspec.Struct, frozen=True):
    """A schema to try. The first message is the Vocabulary instead; its answer is an empty Verdict."""

    schema: str
    limits: Limits


class Verdict(msgspec.Struct, frozen=True):
    """Why a schema is refused, or an empty ``refusal``. ``cpu_s`` is what the trial took.

    ``compiled_bytes`` is the memory of the compiled grammar.
    """

    refusal: str = ""
    cpu_s: float = 0.0
    compiled_bytes: int = 0
