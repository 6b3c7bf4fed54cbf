"""Start-up configuration of vLLM: its environment and its engine arguments."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from generator.adapters import Adapter
from generator.engines.vllm_sampling import SEEDED_SAMPLER
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import DTYPE_OF_GPUS, ROOM_FOR_ADAPTERS, GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import StepBudget

if TYPE_CHECKING:
    from vllm.config import LoRAConfig, SchedulerConfig

_CONNECTOR = "generator.connector.connector"
_SCHEMA_BACKEND = "xgrammar"

WORKER_EXTENSION = "generator.connector.worker_connector.WorkerExtension"
"""Answers questions about the loaded model, and gives it to the connector, to compose KV with."""

_BLOCK_TOKENS = 32
"""The smallest block that the attention kernels of CPUs take: least is lost where documents end inside a block."""

_set_here: dict[str, str] = {}
"""Environment variables that this process got from ``prepare_environment``, and not from its user."""


def prepare_environment(settings: GeneratorSettings) -> None:
    """Set the environment variables of the next engine's process. Variables that the user set win."""
    # Threads beyond the cores wait for each other at the end of each parallel region.
    threads = str(max(1, settings.cpu_threads // _ranks(settings)))
    for name, value in {
        # Without a GPU, these halve the start-up time and save 770 MiB and a spinning core.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": threads,
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_kv_cache_gib),
        # vLLM's logging set-up would remove the log handlers of this process.
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Torch refuses a GPU to a process that was forked after it was asked whether there is one.
        **({"VLLM_WORKER_MULTIPROC_METHOD": "spawn"} if has_gpu() else {}),
        # Even an eager engine compiles the functions that draw tokens and rank log probabilities, with a C++ compiler,
        # at the first request that needs them. All requests would wait 10 s and more for it.
        "TORCHDYNAMO_DISABLE": "1" if _is_eager(settings) else "0",
    }.items():
        if os.environ.get(name) == _set_here.get(name):
            os.environ[name] = _set_here[name] = value


def engine_arguments(
    settings: GeneratorSettings, folder: Path, instance: str, adapters: Sequence[Adapter] = ()
) -> dict[str, Any]:
    """The arguments of ``AsyncEngineArgs`` for the model in ``folder``. The configured ``engine_args`` win.

    Raises ConfigError if the folder has no readable tokenizer.
    """
    arguments = {
        "model": str(folder),
        "served_model_name": settings.model,
        "dtype": _dtype(settings.dtype),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enable_prefix_caching": True,
        # One worker needs no separate process.
        "distributed_executor_backend": "uni" if _ranks(settings) == 1 else "mp",
        "enable_log_requests": False,
        "worker_extension_cls": WORKER_EXTENSION,
        **_device_arguments(settings.engine_args.get("max_model_len", settings.max_model_len)),
        **(_connector_arguments(settings, instance) if settings.kv.enabled else {}),
        **settings.engine_args,
        **(_adapter_arguments(adapters, settings.engine_args) if adapters or settings.serves_adapters else {}),
        "structured_outputs_config": _structured_outputs(settings.engine_args.get("structured_outputs_config")),
    }
    if not has_gpu():
        arguments = _with_seeded_sampler(arguments)
    return _with_prompt_layout(arguments, settings, folder) if uses_connector(arguments) else arguments


def uses_connector(arguments: dict[str, Any]) -> bool:
    """Whether these arguments configure RAGTree's connector, and not another one that the user chose."""
    return (arguments.get("kv_transfer_config") or {}).get("kv_connector_module_path") == _CONNECTOR


def has_gpu() -> bool:
    """Whether the engine of this machine computes on a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments that vLLM does not have. Without any, vLLM is not loaded."""
    if not arguments:
        return
    from vllm.engine.arg_utils import AsyncEngineArgs

    unknown = arguments.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown:
        raise ConfigError(f"vLLM has no engine argument {', '.join(sorted(unknown))}", "generator.engine_args")


def step_budget(scheduler: "SchedulerConfig") -> StepBudget:
    """The tokens of one engine step."""
    tokens = scheduler.max_num_batched_tokens
    return StepBudget(tokens, scheduler.long_prefill_token_threshold or tokens)


def _connector_arguments(settings: GeneratorSettings, instance: str) -> dict[str, Any]:
    kv = settings.kv.model_dump(mode="json", exclude={"enabled"})
    return {
        "kv_transfer_config": {
            "kv_connector": "RagtreeConnector",
            "kv_connector_module_path": _CONNECTOR,
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"instance": instance, **kv},
        },
        # vLLM's default on a GPU is another one, and a page is a block: engines with other blocks could not read it.
        **({"block_size": _BLOCK_TOKENS} if settings.kv.page_layout == "neutral" else {}),
    }


def adapter_places(config: "LoRAConfig") -> int:
    """How many adapters an engine has room for.

    On a CPU, vLLM applies what is in the last place to requests without an adapter that share a step with others. So
    that place stays empty.
    """
    places: int = config.max_loras
    return places - _empty_places()


def _adapter_arguments(adapters: Sequence[Adapter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Room for all adapters at once: vLLM would read one again from its folder, where others may have come meanwhile.

    The ``given`` arguments may ask for more room, for adapters that come later. Raises ConfigError for a rank that vLLM
    has no kernels for, and for arguments that change what adapters compute.
    """
    if refused := sorted(name for name in given if "lora" in name and name not in ROOM_FOR_ADAPTERS):
        raise ConfigError(f"With adapters, RAGTree sets {', '.join(refused)} itself", "generator.engine_args")
    from vllm.config.lora import LoRAConfig, MaxLoRARanks

    places = max(len(adapters), _positive(given, "max_loras", 1))
    # An adapter that comes later has what vLLM makes room for by itself.
    least = _positive(given, "max_lora_rank", LoRAConfig.max_lora_rank if places > len(adapters) else 1)
    ranks: tuple[int, ...] = get_args(MaxLoRARanks)
    largest = max(adapters, key=lambda adapter: adapter.rank, default=None)
    if largest is not None and largest.rank > max(ranks):
        raise largest.refused(f"its rank is {largest.rank}, and vLLM serves up to {max(ranks)}")
    wanted = max(least, largest.rank if largest is not None else 0)
    if wanted > max(ranks):
        raise ConfigError(f"max_lora_rank is {wanted}, and vLLM serves up to {max(ranks)}", "generator.engine_args")
    count = places + _empty_places()
    rank = min(each for each in ranks if each >= wanted)
    return {"enable_lora": True, "max_loras": count, "max_cpu_loras": count, "max_lora_rank": rank}


def _positive(given: Mapping[str, Any], name: str, default: int) -> int:
    """An argument that is a whole number above 0. Raises ConfigError."""
    number = given.get(name, default)
    if type(number) is not int or number < 1:
        raise ConfigError(f"{name} is no whole number above 0: {number!r}", "generator.engine_args")
    return number


def _empty_places() -> int:
    return 0 if has_gpu() else 1


def _structured_outputs(configured: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of structured outputs. Raises ConfigError for another backend than xgrammar.

    By default vLLM checks each schema for the backend that suits it, and then uses that of the first request. And only
    xgrammar's schemas are checked outside of the engine (generator/grammars): others could end it.
    """
    arguments = {"backend": _SCHEMA_BACKEND, **(configured or {})}
    if arguments["backend"] != _SCHEMA_BACKEND:
        raise ConfigError(
            f"structured_outputs_config: the backend {arguments['backend']!r} would compile callers' schemas inside of "
            f"the engine, without bounds; only {_SCHEMA_BACKEND!r} is possible",
            "generator.engine_args",
        )
    return arguments


def _with_prompt_layout(arguments: dict[str, Any], settings: GeneratorSettings, folder: Path) -> dict[str, Any]:
    """The arguments with the digest of the prompt layout, also for a connector that the user has configured."""
    layout = SegmentLayout.configured(ModelTokenizer(folder), settings)
    transfer = arguments["kv_transfer_config"]
    extra = {**transfer.get("kv_connector_extra_config", {}), "prompt_layout": layout.digest}
    return {**arguments, "kv_transfer_config": {**transfer, "kv_connector_extra_config": extra}}


def _with_seeded_sampler(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the sampler of seeded requests on CPUs, after the user's own logits processors.

    vLLM takes none beside speculative decoding. Log probabilities after all processors would be those of its choice.
    """
    if arguments.get("speculative_config") or str(arguments.get("logprobs_mode", "")).startswith("processed"):
        return arguments
    return {**arguments, "logits_processors": [*(arguments.get("logits_processors") or ()), SEEDED_SAMPLER]}


def _is_eager(settings: GeneratorSettings) -> bool:
    """Whether the engine compiles nothing: on a CPU, unless it is configured otherwise."""
    return not has_gpu() and bool(settings.engine_args.get("enforce_eager", True))


def _ranks(settings: GeneratorSettings) -> int:
    """Tensor-parallel ranks of the engine."""
    return int(settings.engine_args.get("tensor_parallel_size", 1))


def _dtype(configured: str) -> str:
    if configured != "auto":
        return configured
    import torch

    if has_gpu():
        return DTYPE_OF_GPUS
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    # Emulated bfloat16 prefills at a fifth of float32's speed.
    return "bfloat16" if native else "float32"


def _device_arguments(max_model_len: int) -> dict[str, Any]:
    if has_gpu():
        return {}
    return {
        # Compilation adds 90 s to every start, and gains nothing measurable on two cores.
        "enforce_eager": True,
        # Steps of which one prompt leaves others a quarter. A short prompt that arrives during a long prefill waits for
        # one step only, and a wrong speculation ends within one step. Longer steps gain nothing more; steps of 256
        # tokens serve 14 % fewer prompts on a CPU with AMX.
        "max_num_batched_tokens": 1024,
        "long_prefill_token_threshold": min(768, max_model_len),
        "block_size": _BLOCK_TOKENS,
    }
