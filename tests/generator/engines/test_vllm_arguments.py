"""The engine arguments bind KV to what turns texts into tokens."""

import os
from types import SimpleNamespace
from unittest import mock

import pytest
from model_folders import make_model_folder

pytest.importorskip("torch")

from generator.engines import vllm_arguments
from generator.engines.vllm_arguments import engine_arguments, has_gpu, prepare_environment
from generator.engines.vllm_sampling import SEED_ARGUMENT, SEEDED_SAMPLER, place_seed, sampling_params
from generator.prompts.layout import SegmentLayout
from generator.prompts.prompt_template import PromptTemplate
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import ConfigError, InvalidRequest
from protocol.generation import Sampling

OWN_CONNECTOR = {
    "kv_transfer_config": {
        "kv_connector": "RagtreeConnector",
        "kv_connector_module_path": "generator.connector.connector",
        "kv_role": "kv_both",
    }
}


@pytest.fixture
def folder(tmp_path):
    return make_model_folder(tmp_path)


def extra_config(folder, **settings) -> dict:
    arguments = engine_arguments(GeneratorSettings(**settings), folder, "generator-0")
    return arguments["kv_transfer_config"]["kv_connector_extra_config"]


@pytest.mark.parametrize("engine_args", [{}, OWN_CONNECTOR], ids=["shipped", "configured"])
def test_the_connector_gets_the_digest_of_the_prompt_layout(folder, monkeypatch, engine_args):
    before = extra_config(folder, engine_args=engine_args)["prompt_layout"]
    assert before == SegmentLayout(ModelTokenizer(folder), "Answer.", 1000).digest
    monkeypatch.setattr(PromptTemplate, "document", lambda template, text: f"{text}\n---\n")
    assert extra_config(folder, engine_args=engine_args)["prompt_layout"] != before
    assert OWN_CONNECTOR["kv_transfer_config"].keys() == {"kv_connector", "kv_connector_module_path", "kv_role"}


def test_the_connector_gets_its_instance_and_the_options_of_kv(folder):
    assert extra_config(folder, kv=KvSettings(host_gib=3))["host_gib"] == 3
    assert extra_config(folder)["instance"] == "generator-0"


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(("engine_args", "tokens"), [({}, 32), ({"block_size": 64}, 64)])
def test_neutral_pages_are_as_large_on_every_device(folder, monkeypatch, gpu, engine_args, tokens):
    monkeypatch.setattr(vllm_arguments, "has_gpu", lambda: gpu)
    settings = GeneratorSettings(kv=KvSettings(page_layout="neutral"), engine_args=engine_args)
    assert engine_arguments(settings, folder, "generator-0")["block_size"] == tokens
    # Otherwise vLLM chooses what suits a GPU.
    assert ("block_size" in engine_arguments(GeneratorSettings(), folder, "generator-0")) is not gpu


@pytest.mark.skipif(has_gpu(), reason="vLLM chooses the steps on a GPU")
def test_on_a_cpu_a_step_has_room_beside_a_long_prompt(folder):
    arguments = engine_arguments(GeneratorSettings(), folder, "generator-0")
    assert 0 < arguments["long_prefill_token_threshold"] < arguments["max_num_batched_tokens"]


@pytest.mark.parametrize("settings", [{"kv": {"enabled": False}}, {"engine_args": {"kv_transfer_config": None}}])
def test_an_engine_without_the_connector_needs_no_tokenizer(tmp_path, settings):
    arguments = engine_arguments(GeneratorSettings(**settings), tmp_path, "generator-0")
    assert not arguments.get("kv_transfer_config")


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="has no tokenizer"):
        engine_arguments(GeneratorSettings(), tmp_path, "generator-0")


@pytest.mark.parametrize(("ranks", "threads"), [(1, "4"), (2, "2"), (8, "1")])
def test_tensor_parallel_ranks_share_the_threads(ranks, threads, monkeypatch):
    monkeypatch.setattr(vllm_arguments, "_set_here", {})
    with mock.patch.dict(os.environ, clear=True):
        prepare_environment(GeneratorSettings(cpu_threads=4, engine_args={"tensor_parallel_size": ranks}))
        assert os.environ["OMP_NUM_THREADS"] == threads


@pytest.mark.skipif(has_gpu(), reason="a GPU's engine compiles")
@pytest.mark.parametrize(("eager", "disabled"), [({}, "1"), ({"enforce_eager": False}, "0")])
def test_an_eager_engine_compiles_nothing_at_a_request(eager, disabled, monkeypatch):
    monkeypatch.setattr(vllm_arguments, "_set_here", {})
    with mock.patch.dict(os.environ, clear=True):
        prepare_environment(GeneratorSettings(engine_args=eager))
        assert os.environ["TORCHDYNAMO_DISABLE"] == disabled


def test_each_engine_gets_its_own_environment_unless_the_user_has_set_it(monkeypatch):
    monkeypatch.setattr(vllm_arguments, "_set_here", {})
    with mock.patch.dict(os.environ, {"VLLM_CPU_KVCACHE_SPACE": "7"}, clear=True):
        for threads in (4, 2):
            prepare_environment(GeneratorSettings(cpu_threads=threads, cpu_kv_cache_gib=threads))
            assert os.environ["OMP_NUM_THREADS"] == str(threads)
            assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"


@pytest.mark.parametrize(
    ("gpu", "engine_args", "processors"),
    [
        (False, {}, [SEEDED_SAMPLER]),
        (False, {"logits_processors": ["a.module:Own"]}, ["a.module:Own", SEEDED_SAMPLER]),
        (False, {"speculative_config": {"method": "ngram"}}, None),
        (False, {"logprobs_mode": "processed_logprobs"}, None),
        (True, {}, None),
    ],
)
def test_seeded_requests_have_a_sampler_of_their_own_on_a_cpu(folder, monkeypatch, gpu, engine_args, processors):
    monkeypatch.setattr(vllm_arguments, "has_gpu", lambda: gpu)
    arguments = engine_arguments(GeneratorSettings(engine_args=engine_args), folder, "generator-0")
    assert arguments.get("logits_processors") == processors


@pytest.mark.parametrize(
    ("device", "processors", "temperature", "seed"),
    [
        ("cpu", [SEEDED_SAMPLER], 0.8, (None, 7)),
        ("cpu", [SEEDED_SAMPLER], 0.0, (None, None)),
        ("cpu", None, 0.0, (None, None)),
        ("cpu", None, 0.8, "refused"),
        ("cuda", None, 0.8, (7, None)),
    ],
)
def test_a_seed_goes_where_the_engine_draws_by_it(device, processors, temperature, seed):
    pytest.importorskip("vllm")
    config = SimpleNamespace(
        device_config=SimpleNamespace(device_type=device), model_config=SimpleNamespace(logits_processors=processors)
    )
    params = sampling_params(Sampling(4, temperature, seed=7))
    if seed == "refused":
        with pytest.raises(InvalidRequest) as caught:
            place_seed(config, params)
        assert caught.value.param == "seed"
    else:
        place_seed(config, params)
        assert (params.seed, (params.extra_args or {}).get(SEED_ARGUMENT)) == seed


@pytest.mark.parametrize("backend", ["auto", "guidance", "outlines"])
def test_a_backend_that_compiles_schemas_inside_of_the_engine_is_refused(folder, backend):
    settings = GeneratorSettings(engine_args={"structured_outputs_config": {"backend": backend}})
    with pytest.raises(ConfigError, match=backend):
        engine_arguments(settings, folder, "generator-0")


def test_other_options_of_structured_outputs_keep_the_backend(folder):
    settings = GeneratorSettings(engine_args={"structured_outputs_config": {"disable_any_whitespace": True}})
    config = engine_arguments(settings, folder, "generator-0")["structured_outputs_config"]
    assert config == {"backend": "xgrammar", "disable_any_whitespace": True}
