"""The allow-list over vLLM's own configuration objects, made from the arguments that a user gives."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from engine_settings import small_engine
from vllm.config.diffusion import DiffusionConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from generator.connector import supported
from generator.connector.refusal import UnsupportedByConnector, name_refusal_file, read_refusal, refusal_passed_on
from generator.connector.scheduler import node_end_scheduler
from generator.connector.scheduler.node_end_scheduler import end_steps_with_nodes
from generator.connector.supported import check, check_config, check_kv_cache, paging_of
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import ConfigError
from protocol.kv import PageGroup, Paging

if TYPE_CHECKING:
    from vllm.config import VllmConfig

HEADS = {"block_size": 32, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
FULL = FullAttentionSpec(**HEADS)
WINDOW = SlidingWindowSpec(**HEADS, sliding_window=64)
CHUNKS = ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=64)
STATE = MambaSpec(block_size=32, shapes=((2048,),), dtypes=(torch.float32,), mamba_cache_mode="align")
NO_ATTENTION = "states in blocks of other lengths than those of attention, or without attention: run them without it"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def kv_cache(*groups: KVCacheSpec) -> KVCacheConfig:
    """The KV cache of a model with one layer in each of these groups."""
    made = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(groups)]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=made)


def refusal(check_it: Callable[..., None], *given: object) -> str:
    with pytest.raises(ConfigError) as refused:
        check_it(*given)
    sentence = str(refused.value)
    assert sentence.startswith("RAGTree's connector does not support ")
    assert "\n" not in sentence
    return sentence


class TestOptions:
    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"dtype": "bfloat16"},
            {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
            {"dtype": "float16", "kv_cache_dtype": "float16"},
            {"enable_prefix_caching": False},
            {"enable_lora": True},
            {"enable_prompt_embeds": True},
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 0},
            {"scheduling_policy": "priority"},
            {"distributed_executor_backend": "mp"},
            {"distributed_executor_backend": "mp", "tensor_parallel_size": 2},
            {"speculative_config": NGRAM},
            {"disable_hybrid_kv_cache_manager": True},
            {"disable_hybrid_kv_cache_manager": False},
            {"model": "mistral"},
            {"hf_overrides": {"num_kv_shared_layers": 1}},
            {"hf_overrides": {"attention_chunk_size": 8192}, "max_num_batched_tokens": 1024},
            {"model": "gemma4"},
            {"model": "gpt-oss"},
            {"model": "long", "disable_sliding_window": True},
            {"kv_cache_dtype": "fp8"},
            {"kv_cache_dtype": "fp8_e5m2"},
        ],
        ids=str,
    )
    def test_supported(self, configured, given):
        check_config(configured(**given))

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (
                {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
                "vLLM's pipeline_parallel_size=2: set it to 1",
            ),
            ({"data_parallel_size": 2}, "vLLM's data_parallel_size=2: set it to 1 and start one instance for each"),
            ({"scheduler_cls": "a.Scheduler"}, "vLLM's scheduler_cls=a.Scheduler: leave it out"),
            ({"weight_transfer_config": {"backend": "nccl"}}, "vLLM's weight_transfer_config: leave it out"),
            ({"runner": "pooling"}, "vLLM's runner_type=pooling: set runner to generate"),
            ({"kv_cache_dtype": "float16"}, "vLLM's kv_cache_dtype=float16: set kv_cache_dtype to the model's own"),
            ({"kv_transfer_config": {"kv_role": "kv_consumer"}}, "vLLM's kv_role=kv_consumer: set it to kv_both"),
            (
                {"kv_transfer_config": {"kv_load_failure_policy": "fail"}},
                "vLLM's kv_load_failure_policy=fail: set it to recompute",
            ),
        ],
        ids=str,
    )
    def test_refused(self, configured, given, words):
        assert words in refusal(check_config, configured(**given))

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("parallel_config.prefill_context_parallel_size", 2),
            ("parallel_config.decode_context_parallel_size", 2),
            ("parallel_config.enable_elastic_ep", True),
            ("parallel_config.enable_dbo", True),
            ("parallel_config.ubatch_size", 2),
            ("model_config.enable_sleep_mode", True),
        ],
    )
    def test_refused_where_vllm_has_it_on_gpus_only(self, configured, place, value):
        config = configured()
        part, name = place.split(".")
        assert name in vars(getattr(config, part))
        setattr(getattr(config, part), name, value)
        assert f"vLLM's {name}={value}: " in refusal(check_config, config)

    @pytest.mark.parametrize("method", ["eagle", "medusa", "mtp"])
    def test_drafts_by_the_models_hidden_states_are_refused(self, configured, method):
        config = configured(speculative_config=NGRAM)
        config.speculative_config.method = method
        reason = refusal(check_config, config)
        assert f"speculative decoding by {method}: use the method ngram, suffix or draft_model, or leave" in reason

    def test_diffusion_is_refused(self, configured):
        config = configured()
        config.diffusion_config = DiffusionConfig(canvas_length=32)
        assert "vLLM's diffusion_config: leave it out" in refusal(check_config, config)


class TestModels:
    @pytest.mark.parametrize(
        ("overrides", "words"),
        [
            ({"is_encoder_decoder": True}, "models with an encoder and a decoder: run them without it"),
        ],
        ids=str,
    )
    def test_refused_by_the_models_own_configuration(self, configured, overrides, words):
        config = configured(hf_overrides=overrides, max_num_batched_tokens=1024)
        assert words in refusal(check_config, config)

    def test_latent_attention_needs_kernels_that_attend_to_earlier_steps(self, configured):
        config = configured(hf_overrides={"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64})
        config.scheduler_config.enable_chunked_prefill = True
        check_config(config)
        config.scheduler_config.enable_chunked_prefill = False
        assert "multi-head latent attention (MLA) on a CPU without AMX" in refusal(check_config, config)

    def test_latent_vectors_in_fp8_are_refused(self, configured):
        config = configured(hf_overrides={"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64})
        config.scheduler_config.enable_chunked_prefill = True
        config.cache_config.cache_dtype = "fp8"
        assert "vLLM's kv_cache_dtype=fp8: set kv_cache_dtype to the model's" in refusal(check_config, config)

    def test_refused_by_what_vllm_knows_of_its_class(self, configured):
        model = (config := configured()).model_config
        model._model_info = replace(model._model_info, is_attention_free=True)
        assert "models with no attention: run them without it" in refusal(check_config, config)

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_states_need_a_scheduler_that_ends_steps_with_nodes(self, with_states, asynchronous):
        config = with_states()
        config.scheduler_config.async_scheduling = asynchronous
        name = f"{node_end_scheduler.__name__}.{'Async' if asynchronous else ''}NodeEndScheduler"
        sentence = refusal(check_config, config)
        assert f"state layers such as Mamba's with vLLM's own scheduler: set scheduler_cls to {name} with" in sentence
        config.scheduler_config.scheduler_cls = node_end_scheduler.NAMES[not asynchronous]
        assert f"Scheduler: set scheduler_cls to {name} with" in refusal(check_config, config)
        config.scheduler_config.scheduler_cls = None
        end_steps_with_nodes(config)
        assert config.scheduler_config.get_scheduler_cls().__name__ == name.rpartition(".")[2]
        check_config(config)

    @pytest.mark.parametrize(
        ("place", "value", "words"),
        [
            ("mamba_cache_mode", "none", "with mamba_cache_mode=none: set it to align, and enable_prefix_caching to"),
            ("prefix_match_unit", 16, "with prefix_match_unit: leave it out"),
        ],
    )
    def test_options_that_models_with_states_do_not_have(self, with_states, place, value, words):
        config = with_states()
        end_steps_with_nodes(config)
        setattr(config.cache_config, place, value)
        assert words in refusal(check_config, config)

    def test_models_with_states_do_not_draft(self, with_states):
        config = with_states(speculative_config=NGRAM)
        end_steps_with_nodes(config)
        assert "state layers such as Mamba's with speculative decoding: leave it out" in refusal(check_config, config)

    def test_states_are_refused_where_vllm_cannot_fail_a_whole_load(self, with_states, monkeypatch):
        """As in vLLM 0.26."""
        monkeypatch.setattr(supported, "SERVES_GROUPS", False)
        assert "in this release of vLLM: run them without it" in refusal(check_config, with_states())

    def test_other_models_keep_vllms_scheduler(self, configured):
        end_steps_with_nodes(config := configured())
        assert config.scheduler_config.scheduler_cls is None

    @pytest.fixture
    def with_states(self, configured):
        def make(**given: object) -> "VllmConfig":
            config = configured(**given)
            config.model_config._model_info = replace(config.model_config._model_info, is_hybrid=True)
            config.cache_config.mamba_cache_mode = "align"
            return config

        return make


class TestLayers:
    """What vLLM keeps for each layer, by its own grouping of layers."""

    @pytest.mark.parametrize(
        ("layers", "groups"),
        [
            ([FULL, FULL], [PageGroup()]),
            ([replace(FULL, dtype=torch.bfloat16)], [PageGroup()]),
            ([FULL, WINDOW, WINDOW], [PageGroup(), PageGroup(64), PageGroup(64)]),
            ([replace(FULL, head_size=64, head_size_v=64), WINDOW], [PageGroup(), PageGroup(64, 2)]),
            ([WINDOW, WINDOW], [PageGroup(64)]),
            ([FULL, CHUNKS], [PageGroup(), PageGroup(64, chunks=True)]),
            ([FULL, STATE], [PageGroup(), PageGroup(1, states=True)]),
            ([STATE, STATE, FULL, WINDOW], [PageGroup(1, states=True)] * 2 + [PageGroup(), PageGroup(64)]),
            ([replace(FULL, attention_chunk_size=64)], [PageGroup()]),
            ([replace(FULL, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)], [PageGroup()]),
            ([MLAAttentionSpec(**HEADS)], [PageGroup()]),
        ],
        ids=[
            "full",
            "bfloat16",
            "with windows",
            "larger heads",
            "windows only",
            "chunks",
            "states",
            "states, all tokens and a window",
            "all tokens of chunks",
            "fp8",
            "latent",
        ],
    )
    def test_supported(self, configured, layers, groups):
        config = configured()
        config.cache_config.kv_cache_layout = "LBHNC"
        made = get_kv_cache_groups(config, {f"layer {number}": spec for number, spec in enumerate(layers)})
        cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=made)
        check_kv_cache(cache)
        assert paging_of(cache) == Paging(32, tuple(groups))

    def test_windows_are_refused_where_vllm_cannot_fail_a_whole_load(self, monkeypatch):
        """As in vLLM 0.26."""
        monkeypatch.setattr(supported, "SERVES_GROUPS", False)
        assert "models whose layers all have a sliding window (here 64 tokens)" in refusal(
            check_kv_cache, kv_cache(WINDOW)
        )
        assert "models whose layers keep different kinds of KV" in refusal(check_kv_cache, kv_cache(FULL, WINDOW))

    def test_windows_of_several_sizes_in_one_group_are_refused(self):
        specs = {"layer 0": WINDOW, "layer 1": replace(WINDOW, sliding_window=32)}
        group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs=specs))
        cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group])
        assert "layers of different windows in one group" in refusal(check_kv_cache, cache)

    def test_layers_with_different_dtypes_are_refused(self, configured):
        layers = {"layer 0": FULL, "layer 1": replace(FULL, dtype=torch.bfloat16)}
        (group,) = get_kv_cache_groups(configured(), layers)
        cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group])
        assert "layers with KV in different dtypes" in refusal(check_kv_cache, cache)

    def test_states_in_longer_blocks_are_refused(self):
        """vLLM finds states within blocks then."""
        assert NO_ATTENTION in refusal(check_kv_cache, kv_cache(FULL, replace(STATE, block_size=64)))

    def test_no_group_is_refused(self):
        assert "models whose layers keep different kinds of KV" in refusal(check_kv_cache, kv_cache())

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (MLAAttentionSpec(**HEADS | {"dtype": torch.uint8}), "sparse or quantised multi-head latent attention"),
            (MLAAttentionSpec(**HEADS, is_index_group_leader=True), "sparse or quantised multi-head latent attention"),
            (RSWASpec(**HEADS, rswa_window=64), "RSWASpec"),
            (SinkFullAttentionSpec(**HEADS, sink_len=4), "SinkFullAttentionSpec"),
            (CrossAttentionSpec(**HEADS), "CrossAttentionSpec"),
            (EncoderOnlyAttentionSpec(**HEADS), "EncoderOnlyAttentionSpec"),
            (STATE, NO_ATTENTION),
            (replace(WINDOW, extra_retained_tokens=4), "models with tokens kept beyond a sliding window"),
            (replace(FULL, non_causal=True), "models with non-causal attention"),
            (replace(FULL, tokens_per_state=4), "models with KV states of several tokens"),
            (
                replace(FULL, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
                "quantised KV: set kv_cache_dtype to the model's",
            ),
            (replace(FULL, dtype=torch.uint8), "quantised KV: set kv_cache_dtype to the model's"),
        ],
        ids=str,
    )
    def test_refused(self, spec, words):
        assert words in refusal(check_kv_cache, kv_cache(spec))


class TestSentence:
    def test_the_engines_process_leaves_the_sentence_in_a_file(self, configured, tmp_path):
        config = configured()
        name_refusal_file(config, tmp_path / "refusal")
        check(config, kv_cache(FULL))
        assert read_refusal(tmp_path / "refusal") is None
        sentence = refusal(check, config, kv_cache(replace(FULL, non_causal=True)))
        left = read_refusal(tmp_path / "refusal")
        assert (type(left), str(left)) == (UnsupportedByConnector, sentence)

    def test_a_folder_that_cannot_be_used_is_no_refusal_of_the_model(self, configured, tmp_path):
        config = configured()
        name_refusal_file(config, tmp_path / "refusal")
        with pytest.raises(ConfigError), refusal_passed_on(config):
            raise ConfigError("the disk is full:\ntwo lines", "generator.kv.disk_dir")
        left = read_refusal(tmp_path / "refusal")
        assert (type(left), str(left)) == (ConfigError, "the disk is full:\ntwo lines")

    def test_without_a_file_the_sentence_is_the_error_only(self, configured):
        assert "non-causal" in refusal(check, configured(), kv_cache(replace(FULL, non_causal=True)))

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"kv_cache_dtype": "float16"}, "^RAGTree's connector does not support vLLM's kv_cache_dtype=float16"),
            ({"kv_offloading_size": 1}, "^vLLM cannot run .*OffloadingConnector"),
        ],
        ids=str,
    )
    async def test_an_engine_that_is_refused_starts_no_process(self, config_folders, tmp_path, given, words):
        """The folder has no weights, so an engine that starts would fail in other words."""
        settings = small_engine(tmp_path)
        settings.engine_args |= given
        with mock.patch.dict(os.environ), pytest.raises(ConfigError, match=words):
            await VllmEngine(settings, config_folders["llama"]).start()
