"""Random weights under which answers depend on every token of a prompt, as a load format of vLLM.

vLLM's own ``dummy`` weights are so small that attention is the same everywhere: wrong KV would change no answer. vLLM
finds ``register`` as a plugin, in each of its processes.
"""

import os
from pathlib import Path
from typing import Any
from zlib import crc32

LOAD_FORMAT = "random"
_GAINS = {"qkv_proj": 1.5, "lm_head": 3.0}
"""By how much some weights enlarge what flows through them. Others keep its size.

Attention this sharp lets an answer depend on tokens far in front; sharper, it would let bfloat16's rounding grow from
layer to layer. Sharp logits make near ties rare, which rounding decides.
"""

_SLOWLY = -4.0

_DRAWN_ON_CPU = 2_000_000_000
"""Parameters of the largest model whose weights are drawn on the CPU, which is slower. They are then equal everywhere:
each kind of device draws other numbers from the same seed."""


def register() -> None:
    """Let vLLM know the load format."""
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class RandomWeights(BaseModelLoader):  # type: ignore[misc]  # vLLM is untyped here
        """Fills a model with numbers that keep the size of what flows through it."""

        def download_model(self, model_config: Any) -> None:  # noqa: ANN401
            """Do nothing: there are no files."""

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:  # noqa: ANN401, ARG002
            """Fill the weights. Equal models get equal weights."""
            on_cpu = sum(weight.numel() for weight in model.parameters()) <= _DRAWN_ON_CPU
            # Gemma enlarges embeddings, beside which layers would add next to nothing.
            scale = float(getattr(getattr(model, "model", None), "normalizer", 1.0))
            for name, weight in model.named_parameters():
                if weight.dim() < 2:
                    # A norm; or how fast a state forgets: hardly.
                    weight.data.fill_(_SLOWLY if "A_log" in name else 1.0)
                    continue
                device = torch.device("cpu") if on_cpu else weight.device
                # Not one seed for all: equal matrices would let a model repeat its last token.
                generator = torch.Generator(device).manual_seed(crc32(name.encode()))
                deviation = 1.0 / scale
                if "embed_tokens" not in name:
                    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
                    deviation = gain / weight.shape[-1] ** 0.5
                drawn = torch.empty(weight.shape, dtype=weight.dtype, device=device)
                weight.data.copy_(drawn.normal_(0.0, deviation, generator=generator))


def install(folder: Path) -> None:
    """Let processes that this one starts find the plugin, through files in ``folder``."""
    facts = folder / "ragtree_gpu_proof-0.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ragtree-gpu-proof\nVersion: 0.0\n")
    (facts / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\nragtree_random_weights = {__name__}:{register.__name__}\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
