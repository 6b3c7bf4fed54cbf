"""Translation between the protocol's sampling types and vLLM's."""

from typing import TYPE_CHECKING

from protocol.generation import FinishReason, Sampling, TokenLogprob

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import CompletionOutput


def sampling_params(sampling: Sampling) -> "SamplingParams":
    """The vLLM parameters for a sampling. Each output has only the tokens since the last one."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=list(sampling.stop) or None,
        ignore_eos=sampling.ignore_eos,
        # With 0 alternatives, vLLM returns the log probabilities of the sampled tokens.
        logprobs=sampling.alternatives if sampling.logprobs else None,
        output_kind=RequestOutputKind.DELTA,
    )


def token_logprobs(completion: "CompletionOutput") -> tuple[TokenLogprob, ...]:
    """The log probabilities of an output's sampled tokens."""
    return tuple(
        TokenLogprob(
            token_id,
            ranked[token_id].logprob,
            {other: one.logprob for other, one in ranked.items()} if len(ranked) > 1 else {},
        )
        for token_id, ranked in zip(completion.token_ids, completion.logprobs or [], strict=True)
    )


def finish_reason(reason: str | None) -> FinishReason:
    """The protocol's reason for the end of an answer."""
    return "length" if reason == "length" else "stop"
