"""The vocabulary and the bounds with which a running vLLM compiles schemas."""

import resource
from typing import TYPE_CHECKING

from generator.grammars.messages import Vocabulary

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_MIB = 1024 * 1024
_STACK_BYTES = 8 * _MIB
_STACK_BYTES_IF_UNLIMITED = 2 * _MIB
"""What glibc gives to threads of a process without a limit."""


def engine_vocabulary(llm: "AsyncLLM") -> Vocabulary:
    """What vLLM's own backend makes of its tokenizer, and how it is configured."""
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    config = llm.vllm_config
    backend = XgrammarBackend(config, tokenizer=llm.tokenizer, vocab_size=config.model_config.get_vocab_size())
    compact = backend.disable_any_whitespace
    # The backend does not keep what it compiles with, but everything that it has compiled does.
    info = backend.compiler.compile_builtin_json_grammar().tokenizer_info
    return Vocabulary(info.serialize_json(), any_whitespace=not compact, separators=(",", ":") if compact else None)


def trial_stack_bytes() -> int:
    """Half of the stack that the engine's threads have. What fits into it does not overflow theirs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = _STACK_BYTES_IF_UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, _STACK_BYTES)
    return threads // 2


def remembered_bytes() -> int:
    """Half of what vLLM's cache of compiled grammars holds."""
    from vllm import envs

    return int(envs.VLLM_XGRAMMAR_CACHE_MB) * _MIB // 2
