"""Settings of the real engines in these tests."""

from pathlib import Path
from typing import Literal

from generator.settings import GeneratorSettings, KvSettings, PeerSettings

SLOTS = 4
"""Requests that run at once. Another one waits for a slot."""
BLOCKS = 80
"""Blocks of the engine's KV cache: room for about five prompts of these tests, so that others have to be evicted."""
STEPS = {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 192}
"""Steps that are shorter than prompts, so that prefills take several."""


def small_engine(folder: Path, kv_enabled: bool | Literal["auto"] = True) -> GeneratorSettings:
    """An engine with a small KV cache that keeps KV under ``folder``.

    It computes in float32, because in bfloat16, the default of some machines, other step sizes round to other tokens.
    """
    kv = KvSettings(enabled=kv_enabled, disk_dir=folder / "kv", host_gib=0.25, disk_gib=0.05, host_dir=folder)
    return GeneratorSettings(
        max_model_len=1024,
        max_num_seqs=SLOTS,
        dtype="float32",
        kv=kv,
        engine_args={"num_gpu_blocks_override": BLOCKS, **STEPS},
    )


def serving_peers(folder: Path) -> PeerSettings:
    """Settings of an engine that serves its KV to peers on this machine, with a key in ``folder``."""
    key_file = folder / "peers.key"
    key_file.write_text("a secret of the tests' own\n")
    return PeerSettings(key_file=key_file, host="127.0.0.1", timeout_s=5)
