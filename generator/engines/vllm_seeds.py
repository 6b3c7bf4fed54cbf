"""Where the seed of a request goes: to vLLM, or to ``seeded_sampler`` on a CPU."""

from typing import TYPE_CHECKING

from protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

SEEDED_SAMPLER = "generator.engines.seeded_sampler:SeededSampler"
"""The logits processor that draws the tokens of seeded requests on a CPU."""

SEED_ARGUMENT = "ragtree_seed"
"""Its entry in vLLM's ``extra_args`` of a request."""

_FOR_MINUS_ONE = 2**63 - 1


def place_seed(config: "VllmConfig", params: "SamplingParams") -> None:
    """Move a request's seed to where the engine draws by it. Raises InvalidRequest if the engine has no such place."""
    if params.seed is None or config.device_config.device_type != "cpu":
        return
    if params.temperature > 0:
        if SEEDED_SAMPLER not in (config.model_config.logits_processors or ()):
            raise InvalidRequest("this engine cannot repeat sampled answers: leave the seed out", "seed")
        params.extra_args = {**(params.extra_args or {}), SEED_ARGUMENT: params.seed}
    params.seed = None


def engine_seed(seed: int | None) -> int | None:
    """The seed as vLLM takes it, which takes -1 for none."""
    return _FOR_MINUS_ONE if seed == -1 else seed
