"""Draws the tokens of seeded requests on a CPU, as a logits processor of vLLM.

vLLM gives a seeded request a generator of random numbers, which it turns back after each step of a prefill but the
last. A CPU's generator cannot be turned back, so the engine would die. Here a token's random numbers come from the
seed and from the token's position, as in vLLM's newer model runner for GPUs. So nothing has to be turned back: an
answer depends neither on the steps of its prefill nor on a preemption or a failed load.
"""

import hashlib
import struct
from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from generator.engines.vllm_sampling import SEED_ARGUMENT

if TYPE_CHECKING:
    from vllm import SamplingParams


class SeededSampler(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM is untyped here
    """Leaves one token to each request with a seed: vLLM then samples that."""

    def is_argmax_invariant(self) -> bool:
        """True: vLLM then calls it after temperature, penalties and min_p, and never for greedy requests."""
        return True

    def new_req_logits_processor(self, params: "SamplingParams") -> "SeededDraw | None":
        """The draw of a request, or None for one without a seed."""
        seed = (params.extra_args or {}).get(SEED_ARGUMENT)
        return None if seed is None else SeededDraw(seed, params.top_k, params.top_p)


class SeededDraw:
    """One request's draw. ``top_k`` below 1 and ``top_p`` of 1 leave out no tokens."""

    def __init__(self, seed: int, top_k: int, top_p: float) -> None:
        self._seed = seed
        self._top_k = top_k
        self._top_p = top_p
        self._generator = torch.Generator()

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits of the next token, of which one is finite."""
        self._generator.manual_seed(_seed_at(self._seed, len(prompt_ids) + len(output_ids)))
        # The largest sum of a logit and Gumbel's noise: a draw in proportion to the probabilities.
        waits = torch.empty_like(logits).exponential_(generator=self._generator)
        waits.clamp_min_(torch.finfo(logits.dtype).tiny)
        chosen = (self._likely(logits) - waits.log_()).argmax()
        return torch.full_like(logits, -torch.inf).index_fill_(0, chosen, 0.0)

    def _likely(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits of the tokens that are left by the top k and the top p, by vLLM's own function."""
        k = torch.tensor([self._top_k]) if 0 < self._top_k < len(logits) else None
        p = torch.tensor([self._top_p]) if self._top_p < 1 else None
        likely: torch.Tensor = apply_top_k_top_p(logits.unsqueeze(0), k, p)
        return likely[0]


def _seed_at(seed: int, position: int) -> int:
    """Seeds of neighbouring seeds and positions have nothing in common."""
    return int.from_bytes(hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=4).digest())
