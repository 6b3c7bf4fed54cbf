"""Ways to ask: system prompts, and samplings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from protocol.generation import RepetitionDetection, Sampling

CONFIGURED = "configured"
"""The system prompt that is configured, and the baseline."""

GREEDY = "greedy"
"""Greedy decoding without penalties, and the baseline."""

SYSTEM_PROMPTS: Mapping[str, str] = MappingProxyType(
    {
        "short": "Answer from the documents. If they do not hold the answer, say that you do not know.",
        "brief": "Answer the question from the documents in as few words as possible. If the answer is not in the "
        "documents, say: I do not know.",
        "plain": "You answer the user's question from the documents given in front of it. If the documents do not hold "
        "the answer, say that you do not know.",
        "quote": "Find the sentence of the documents that answers the question, and answer in its words. If there is "
        "no such sentence, reply: The documents do not say.",
        "strict": 'Use only what the documents say. Reply "I do not know" unless the documents state the answer.',
        "answer-only": "Answer the question from the documents. Give the answer only, without repeating the question "
        "and without explanations.",
    }
)
"""The candidates, by name."""


def _penalised(repetition: float = 1.0, frequency: float = 0.0) -> Sampling:
    return Sampling(max_tokens=1, repetition_penalty=repetition, frequency_penalty=frequency)


SAMPLINGS: Mapping[str, Sampling] = MappingProxyType(
    {
        **{f"repetition {penalty:g}": _penalised(repetition=penalty) for penalty in (1.05, 1.1, 1.2, 1.3)},
        **{f"frequency {penalty:g}": _penalised(frequency=penalty) for penalty in (0.2, 0.5, 1.0)},
        "detection": Sampling(max_tokens=1, frequency_penalty=0.0, repetition_detection=RepetitionDetection()),
    }
)
"""The candidates, by name; how long answers may be is the benchmark's to say."""


class Way(NamedTuple):
    """A system prompt and a sampling, by name."""

    prompt: str
    sampling: str


BASELINE = Way(CONFIGURED, GREEDY)


def ways_of(prompts: list[str], samplings: list[str]) -> list[Way]:
    """The baseline, and each of ``prompts`` and ``samplings`` with the other as in the baseline."""
    return [
        BASELINE,
        *(Way(prompt, GREEDY) for prompt in prompts),
        *(Way(CONFIGURED, sampling) for sampling in samplings),
    ]
