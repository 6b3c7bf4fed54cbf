"""Which models fit which devices, and how devices are found."""

import pytest

from generator import device as devices
from generator.catalogue import CATALOGUE
from generator.device import Device, find_device
from generator.memory_fit import Fit, memory_fit
from generator.model_facts import ModelFacts
from generator.settings import GeneratorSettings

GIB = 1 << 30
BY_NAME = {model.name: model for model in CATALOGUE}
A100 = Device("A100", 80 * GIB, is_gpu=True, native_bfloat16=True)
OLD_CPU = Device("CPU", 24 * GIB, is_gpu=False, native_bfloat16=False)


@pytest.mark.parametrize(
    ("name", "kv_kib"),
    [
        ("smollm2-135m-instruct", 22.5),
        ("Qwen/Qwen2.5-7B-Instruct", 56),
        ("meta-llama/Llama-3.1-8B-Instruct", 128),
        ("meta-llama/Llama-3.3-70B-Instruct", 320),
    ],
)
def test_kv_of_a_token_is_a_key_and_a_value_of_each_layer_and_head(name, kv_kib):
    assert BY_NAME[name].kv_bytes(2) == kv_kib * 1024


def test_the_catalogue_is_by_size_and_its_names_are_unique():
    sizes = [model.parameters for model in CATALOGUE]
    assert sizes == sorted(sizes)
    assert len(BY_NAME) == len(CATALOGUE)


@pytest.mark.parametrize(("memory_gib", "fits"), [(1.9, Fit.NO), (2.1, Fit.TIGHT), (4.9, Fit.TIGHT), (5.1, Fit.YES)])
def test_fit_counts_weights_the_engine_and_prompts(memory_gib, fits):
    """A prompt of 1,024 tokens is a GiB of KV, the engine another one, and the weights nearly nothing."""
    model = ModelFacts(name="m", parameters=1, layers=128, kv_heads=8, head_dim=256, context=1024)
    assert model.kv_bytes(2) == 1 << 20
    settings = GeneratorSettings(engine_args={"gpu_memory_utilization": 1.0})
    assert memory_fit(Device("GPU", int(memory_gib * GIB), True, True), settings).of(model) is fits


def test_settings_and_device_decide_what_a_value_takes():
    assert memory_fit(A100, GeneratorSettings()).value_bytes == 2
    assert memory_fit(OLD_CPU, GeneratorSettings()).value_bytes == 4
    assert memory_fit(OLD_CPU, GeneratorSettings(dtype="bfloat16")).value_bytes == 2
    assert memory_fit(A100, GeneratorSettings(dtype="float32")).value_bytes == 4


def test_tensor_parallel_ranks_add_their_gpus():
    large = BY_NAME["meta-llama/Llama-3.3-70B-Instruct"]
    assert memory_fit(A100, GeneratorSettings()).of(large) is Fit.NO
    assert memory_fit(A100, GeneratorSettings(engine_args={"tensor_parallel_size": 4})).of(large) is Fit.YES


def test_a_container_limits_the_memory_and_flags_tell_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_computes_on_gpus", lambda: False)
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512_bf16 sse\n")
    assert find_device(tmp_path, tmp_path / "cpuinfo") == ("CPU", GIB, False, True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512_bf16x\n")
    found = find_device(tmp_path, tmp_path / "cpuinfo")
    assert found.memory > GIB
    assert not found.native_bfloat16


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("NVIDIA H200, 143771\nNVIDIA A10G, 23028", ("NVIDIA A10G", 23028 << 20, True, True)),
        ("NVIDIA Thor, [N/A]", None),
        ("", None),
    ],
)
def test_gpus_count_if_the_installed_vllm_uses_them(tmp_path, monkeypatch, told, found):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{told}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(devices, "_computes_on_gpus", lambda: True)
    there = find_device()
    assert (there if there.is_gpu else None) == found
    monkeypatch.setattr(devices, "_computes_on_gpus", lambda: False)
    assert not find_device().is_gpu
