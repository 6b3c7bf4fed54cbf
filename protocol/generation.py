"""Requests to a generator besides the plan, and its answers."""

from typing import Literal

import msgspec

from protocol.kv import KvMemory, KvRead, LostCopy
from protocol.tiers import Tier

FinishReason = Literal["stop", "length", "ended"]
"""Why an answer ended: a stop token, its length limit, or the end of an unneeded speculation."""


class RepetitionDetection(msgspec.Struct, frozen=True):
    """When an answer loops: it ends in the same tokens ``min_count`` times in a row.

    The repeated sequence has from ``min_pattern_size`` to ``max_pattern_size`` tokens.
    """

    max_pattern_size: int = 128
    min_pattern_size: int = 8
    min_count: int = 3


class Sampling(msgspec.Struct, frozen=True):
    """How to choose tokens: greedy at temperature 0. ``max_tokens`` limits the answer, ``stop`` strings end it.

    ``top_p``, ``top_k`` and ``min_p`` leave out unlikely tokens; 0 ``top_k`` leaves out none. The penalties are vLLM's.
    Without a ``frequency_penalty``, the engine has that of its model. ``logit_bias`` is added to the logits of tokens,
    by id. The answer follows ``json_schema``, a schema as JSON text. With ``repetition_detection``, an answer that
    loops ends. With ``ignore_eos``, the model's own end of an answer does not end it: then all answers are equally
    long. With ``logprobs``, each step has its tokens and the natural logarithms of their probabilities, and those of as
    many ``alternatives``.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float | None = None
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    repetition_detection: RepetitionDetection | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: str | None = None
    logprobs: bool = False
    alternatives: int = 0
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        """Whether each token is the model's most likely one, but for the penalty of the engine's model."""
        plain = Sampling(self.max_tokens, seed=self.seed, stop=self.stop, ignore_eos=self.ignore_eos)
        free = msgspec.structs.replace(self, top_p=1.0, top_k=0, min_p=0.0, logprobs=False, alternatives=0)
        return msgspec.structs.replace(free, frequency_penalty=self.frequency_penalty or None) == plain

    @property
    def needs_check(self) -> bool:
        """Whether only the engine knows if it can sample like this: see ``Generator.check``."""
        return self.json_schema is not None or self.logprobs or self.min_p > 0 or bool(self.logit_bias)


class TokenLogprob(msgspec.Struct, frozen=True):
    """A generated token and the natural logarithm of its probability.

    ``alternatives`` are those of the most likely tokens in its place. ``texts`` are the texts of all these tokens, by
    id: that of a token inside a character is empty, and the token that completes the character has all of it.
    """

    token_id: int
    logprob: float
    alternatives: dict[int, float] = {}
    texts: dict[int, str] = {}


class PrefillResult(msgspec.Struct, frozen=True):
    """Result of a plan's prefill: the origin of its prompt's tokens, and milliseconds by phase.

    ``loaded`` splits ``cached_tokens`` by source tier. ``composed_tokens`` are donated ones that were used as they
    were, ``recomputed_tokens`` donated ones that were computed again, whose KV ``deviation`` compares with what was
    donated. ``in_trees`` says that the prompt's facts have KV of dependency attention. ``lost`` lists copies that the
    engine found missing, could not write, or had to drop since the last result. They may be of other plans' nodes.
    ``reads`` is what was read of tiers, as far as it was timed: here, and at other locations.
    """

    prompt_tokens: int
    cached_tokens: int
    prefill_ms: float
    kv_load_ms: float = 0.0
    composed_tokens: int = 0
    recomputed_tokens: int = 0
    deviation: float = 0.0
    in_trees: bool = False
    loaded: dict[Tier, int] = {}
    lost: tuple[LostCopy, ...] = ()
    reads: tuple[KvRead, ...] = ()

    @property
    def peer_reads(self) -> tuple[KvRead, ...]:
        """What was read at other locations."""
        return tuple(read for read in self.reads if read.location)

    @property
    def computed_tokens(self) -> int:
        """The prompt's tokens that were computed, those included that were computed again."""
        return self.prompt_tokens - self.cached_tokens - self.composed_tokens


class GenerationStep(msgspec.Struct, frozen=True):
    """One step of a stream: new ``text`` (empty while a character is incomplete) and the number of ``tokens`` it took.

    The first step carries ``prefill``, the last one ``finish_reason``; one step may be both. If a prefill was ended
    early, its step has no tokens, and ``prefill`` covers the computed part of the prompt, or is None if none of it is
    kept. ``logprobs`` has an entry for each token if they were requested and the engine supports them. ``unwritten``,
    on the last step, are the copies in shared tiers that the plan was to write and that are not there; None if it
    writes none, or if some may still be written.
    """

    text: str
    tokens: int
    prefill: PrefillResult | None = None
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    unwritten: tuple[LostCopy, ...] | None = None


class StepBudget(msgspec.Struct, frozen=True):
    """The most prompt tokens that one engine step computes, in all and of a single prompt that shares the step."""

    tokens: int
    prompt_tokens: int


ASKED_TOKENS = 24
"""The most tokens of a question, its last ones, that select what is computed again by their attention."""


class ComposingInfo(msgspec.Struct, frozen=True):
    """How an engine composes KV: moving a token's KV to another position takes ``move_s`` seconds.

    ``methods`` are the selectors of what is computed again. ``no_trees`` says why the engine has no attention within
    dependency trees; it is empty if it has. It keeps the KV of branches of at most ``branch_tokens`` tokens.
    """

    move_s: float
    methods: tuple[str, ...]
    no_trees: str = ""
    branch_tokens: int = 0


class ServedAdapter(msgspec.Struct, frozen=True):
    """An adapter by the ``digest`` of its files.

    ``source`` is the folder or Hugging Face id of one that was added while the engine ran; None for a configured one.
    """

    digest: str
    source: str | None = None


ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
"""The names that adapters may have."""


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine serves: ``model`` as users name it, and the longest prompt plus answer, in tokens.

    ``kv`` is None if no KV is kept outside the engine's own cache; ``not_kept`` says why if it should have been.
    ``step`` is None if prefills are not batched, ``composing`` if its KV cannot be composed, which ``not_composing``
    explains. All are None before the engine is started. ``adapters`` are served as models, too, by name.
    """

    model: str
    engine: str
    max_model_len: int
    kv: KvMemory | None = None
    step: StepBudget | None = None
    composing: ComposingInfo | None = None
    not_composing: str = ""
    not_kept: str = ""
    adapters: dict[str, ServedAdapter] = {}


class PrefillCost(msgspec.Struct, frozen=True):
    """Seconds that an engine took to prefill ``new_tokens`` after ``cached_tokens`` in its cache."""

    cached_tokens: int
    new_tokens: int
    seconds: float
