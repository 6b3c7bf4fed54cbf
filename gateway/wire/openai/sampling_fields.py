"""The fields of an OpenAI request that control how tokens are chosen."""

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.wire.entries import at_most
from gateway.wire.schemas import Seed, Temperature, Text, TopP
from protocol.generation import Sampling

MAX_TOP_LOGPROBS = 20

TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_StopString = Annotated[Text, Field(min_length=1)]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]


class SamplingFields(BaseModel):
    """OpenAI's sampling parameters, and those of vLLM beside them. Without ``temperature``, decoding is greedy."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    sampling_top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="Sample among this number of most likely tokens. `top_k` is the number of chunks."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[_TokenId, _Bias], Field(max_length=1024), at_most(1024)] | None = None
    seed: Seed | None = None
    stop: _StopString | Annotated[list[_StopString], Field(fail_fast=True, max_length=16)] | None = None

    def to_sampling(self, max_tokens: int, json_schema: str | None, top_logprobs: int | None) -> Sampling:
        """The sampling of an answer. ``top_logprobs`` is the number of alternatives; None for no log probabilities."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.sampling_top_k or 0,
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias={int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()},
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            json_schema=json_schema,
            logprobs=top_logprobs is not None,
            alternatives=top_logprobs or 0,
        )
