"""What a generator is told besides the plan, and what it answers."""

from typing import Literal

import msgspec

from protocol.kv import KvMemory, LostCopy
from protocol.tiers import Tier

FinishReason = Literal["stop", "length", "ended"]
"""Why an answer ended: by itself, at its bound, or because its generation was speculative and not wanted any more."""


class Sampling(msgspec.Struct, frozen=True):
    """How to choose tokens: greedy at temperature 0. ``max_tokens`` bounds the answer, ``stop`` strings end it.

    ``logprobs`` asks for the tokens' ids and their natural logarithms of probability.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token that was chosen, and the natural logarithm of its probability."""

    token_id: int
    logprob: float


class PrefillResult(msgspec.Struct, frozen=True):
    """What the prefill of a plan came to: where its prompt's tokens came from, and milliseconds by phase.

    ``loaded`` splits ``cached_tokens`` by the tier that they came from. ``lost`` are copies, of the plan's nodes or of
    others, that the engine found missing, could not write, or had to let go since the last result.
    """

    prompt_tokens: int
    cached_tokens: int
    prefill_ms: float
    kv_load_ms: float = 0.0
    composed_tokens: int = 0
    loaded: dict[Tier, int] = {}
    lost: tuple[LostCopy, ...] = ()


class GenerationStep(msgspec.Struct, frozen=True):
    """One step of a stream: new ``text`` (empty while a character is incomplete) and ``tokens``, how many it took.

    The first step of a stream carries ``prefill``, the last one ``finish_reason``; one step may be both. Where a
    prefill was ended, that step has no tokens, and ``prefill`` is of as much of the prompt as had been reached, or None
    if nothing of it is kept. ``logprobs`` has an entry for each token where they were asked for, by an engine that
    knows them.
    """

    text: str
    tokens: int
    prefill: PrefillResult | None = None
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class StepBudget(msgspec.Struct, frozen=True):
    """Prompt tokens that a step of an engine computes at most, and of one prompt beside others."""

    tokens: int
    prompt_tokens: int


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine serves: ``model`` as users name it, and the longest prompt plus answer, in tokens.

    ``kv`` is None where no KV is kept outside the engine's own cache, ``step`` where prefills are not batched. Both are
    None before the engine is started.
    """

    model: str
    engine: str
    max_model_len: int
    kv: KvMemory | None = None
    step: StepBudget | None = None


class PrefillCost(msgspec.Struct, frozen=True):
    """Seconds that an engine took to prefill ``new_tokens`` behind ``cached_tokens`` already in its cache."""

    cached_tokens: int
    new_tokens: int
    seconds: float
