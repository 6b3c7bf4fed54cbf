"""Translation between the protocol's sampling types and vLLM's, and where the seed of a request goes."""

from typing import TYPE_CHECKING

import msgspec

from generator.grammars.messages import PLACE_IN_SOURCE
from protocol.errors import InvalidRequest
from protocol.generation import FinishReason, Sampling, TokenLogprob

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.outputs import CompletionOutput
    from vllm.tokenizers import TokenizerLike

SEEDED_SAMPLER = "generator.engines.seeded_sampler:SeededSampler"
"""The logits processor that draws the tokens of seeded requests on a CPU."""

SEED_ARGUMENT = "ragtree_seed"
"""Its entry in vLLM's ``extra_args`` of a request."""

_FOR_MINUS_ONE = 2**63 - 1
_LEAST_REPETITION_PENALTY = 0.01
"""vLLM divides logits by it. With much less they overflow, and no token follows a schema any more."""


def place_seed(config: "VllmConfig", params: "SamplingParams") -> None:
    """Move a request's seed to where the engine draws by it. Raises InvalidRequest if the engine has no such place."""
    if params.seed is None or config.device_config.device_type != "cpu":
        return
    if params.temperature > 0:
        if SEEDED_SAMPLER not in (config.model_config.logits_processors or ()):
            raise InvalidRequest("this engine cannot repeat sampled answers: leave the seed out", "seed")
        params.extra_args = {**(params.extra_args or {}), SEED_ARGUMENT: params.seed}
    params.seed = None


def sampling_params(sampling: Sampling) -> "SamplingParams":
    """The vLLM parameters for a sampling. Each output has only the tokens since the last one. Raises InvalidRequest."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

    loops = sampling.repetition_detection

    try:
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty or 0.0,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=max(_LEAST_REPETITION_PENALTY, sampling.repetition_penalty),
            repetition_detection=(
                None
                if loops is None
                else RepetitionDetectionParams(loops.max_pattern_size, loops.min_pattern_size, loops.min_count)
            ),
            logit_bias=sampling.logit_bias or None,
            # vLLM takes -1 for none.
            seed=_FOR_MINUS_ONE if sampling.seed == -1 else sampling.seed,
            stop=list(sampling.stop) or None,
            structured_outputs=(
                None if sampling.json_schema is None else StructuredOutputsParams(json=sampling.json_schema)
            ),
            ignore_eos=sampling.ignore_eos,
            # With 0 alternatives, vLLM returns the log probabilities of the sampled tokens.
            logprobs=sampling.alternatives if sampling.logprobs else None,
            output_kind=RequestOutputKind.DELTA,
        )
    except VLLMValidationError as error:
        raise refusal(error) from error


def penalised(sampling: Sampling, frequency_penalty: float | None) -> Sampling:
    """Add a frequency penalty to a sampling that leaves it open.

    An answer in JSON has none, because it repeats punctuation and names.
    """
    if sampling.frequency_penalty is not None or sampling.json_schema is not None:
        return sampling
    return msgspec.structs.replace(sampling, frequency_penalty=frequency_penalty)


def check_sampling(config: "VllmConfig", tokenizer: "TokenizerLike | None", sampling: Sampling) -> None:
    """Check a sampling with the function that vLLM calls for each request. Raises InvalidRequest.

    Converts a schema, which takes tens of milliseconds for the largest. May run in any thread.
    """
    from vllm.exceptions import VLLMValidationError

    params = sampling_params(sampling)
    place_seed(config, params)
    try:
        params.verify(config.model_config, config.speculative_config, config.structured_outputs_config, tokenizer)
    # Some of its checks raise plain ValueErrors.
    except (VLLMValidationError, ValueError) as error:
        # Only its checks of schemas name no parameter.
        raise refusal(error, "json_schema" if params.structured_outputs is not None else None) from error


def refusal(error: Exception, unnamed: str | None = None) -> InvalidRequest:
    """The protocol's error for a request that vLLM refuses. ``unnamed`` is to blame if vLLM names no parameter."""
    # Not str(error), which also quotes the value.
    said = PLACE_IN_SOURCE.sub("", str(error.args[0] if error.args else error)).strip()
    return InvalidRequest(f"vLLM refuses the request: {said}", getattr(error, "parameter", None) or unnamed)


def token_logprobs(completion: "CompletionOutput", alternatives: int) -> tuple[TokenLogprob, ...]:
    """The log probabilities of an output's sampled tokens. vLLM has decoded the tokens."""
    return tuple(
        TokenLogprob(
            token_id,
            ranked[token_id].logprob,
            {other: one.logprob for other, one in ranked.items()} if alternatives else {},
            {other: one.decoded_token or "" for other, one in ranked.items()},
        )
        for token_id, ranked in zip(completion.token_ids, completion.logprobs or [], strict=True)
    )


def finish_reason(reason: str | None) -> FinishReason:
    """The protocol's reason for the end of an answer."""
    return "length" if reason == "length" else "stop"
