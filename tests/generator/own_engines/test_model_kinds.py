"""Models with windows and full attention are served from all tiers, and others without the connector, if they may."""

import pytest
import torch
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, kv_path, put, segment
from tiny_models import (
    WINDOW,
    continuation,
    deepseek,
    gemma4,
    gpt_oss,
    hidden_window,
    lfm2,
    llama,
    make_config_folder,
    make_tiny_model,
    mistral,
    qwen3_next,
)

from examine.measuring.engines import generate
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import ConfigError
from protocol.generation import Sampling

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm]

TOKENS = 8


@pytest.mark.parametrize(("kind", "prefix_caching"), [(gemma4, True), (gpt_oss, False)])
async def test_sliding_windows_beside_full_attention_are_exact_from_every_tier(tmp_path, kind, prefix_caching):
    """Compared with transformers, over a prompt of five windows. vLLM's own cache, on or off, makes no difference."""
    folder = make_tiny_model(tmp_path / "model", kind())
    path = kv_path((SYSTEM, FIRST, SECOND))
    other = kv_path((SYSTEM, segment("another", len(FIRST.token_ids)), SECOND))
    assert len(SECOND.token_ids) > WINDOW
    expected, others = (
        continuation(folder, made.plan("why?", None, None).prompt.token_ids, TOKENS) for made in (path, other)
    )
    # The answer depends on the document outside of the window.
    assert expected.token_ids != others.token_ids
    settings = small_engine(tmp_path)
    settings.engine_args["enable_prefix_caching"] = prefix_caching
    engine = VllmEngine(settings, folder)
    await engine.start()
    try:
        for tier in (None, GPU, HOST, DISK):
            stored = kv_path(path.segments)
            if tier is not None:
                await put(engine, stored, tier)
            answer = await generate(engine, stored.plan("why?", tier, None), Sampling(TOKENS, logprobs=True))
            assert answer.prefill.loaded == ({} if tier is None else {tier: path.tokens})
            assert tuple(token.token_id for token in answer.logprobs) == expected.token_ids
            assert [token.logprob for token in answer.logprobs] == pytest.approx(expected.logprobs, abs=1e-3)
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        pytest.param(llama, {"engine_args": {"kv_cache_dtype": "fp8"}}, id="fp8"),
        pytest.param(llama, {"engine_args": {"kv_cache_dtype": "fp8_e5m2"}}, id="fp8 with five bits of exponent"),
        pytest.param(
            deepseek,
            {"dtype": "bfloat16"},
            id="latent",
            marks=pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="vLLM's kernels need AMX"),
        ),
    ],
)
async def test_kv_of_other_numbers_is_as_good_from_every_tier_as_computed(tmp_path, kind, given):
    folder = make_tiny_model(tmp_path / "model", kind())
    settings = small_engine(tmp_path)
    settings = settings.model_copy(update=given | {"engine_args": settings.engine_args | given.get("engine_args", {})})
    engine = VllmEngine(settings, folder)
    await engine.start()
    try:
        info = await engine.info()
        assert info.kv is not None
        assert info.composing is None
        assert "cannot be composed" in info.not_composing
        path = kv_path((SYSTEM, FIRST, SECOND))
        other = kv_path((SYSTEM, segment("another", len(FIRST.token_ids)), SECOND))
        sampling = Sampling(TOKENS, logprobs=True)
        computed = await generate(engine, path.plan("why?", None, None), sampling)
        differs = await generate(engine, other.plan("why?", None, None), sampling)
        assert computed.logprobs != differs.logprobs
        came = {}
        for tier in (GPU, HOST, DISK):
            stored = kv_path(path.segments)
            await put(engine, stored, tier)
            came[tier] = await generate(engine, stored.plan("why?", tier, None), sampling)
            assert came[tier].prefill.loaded == {tier: path.tokens}
        # The engine's own blocks and a prefill in one step round in other ways.
        first, own = computed.logprobs[0], came[GPU].logprobs
        assert (own[0].token_id, own[0].logprob) == (first.token_id, pytest.approx(first.logprob, abs=0.05))
        for tier in (HOST, DISK):
            assert [token.token_id for token in came[tier].logprobs] == [token.token_id for token in own]
            expected = pytest.approx([token.logprob for token in own], abs=1e-3)
            assert [token.logprob for token in came[tier].logprobs] == expected
    finally:
        await engine.close()


async def test_sliding_windows_only_are_refused_before_the_weights_are_loaded(tmp_path):
    """vLLM frees blocks outside of the window and uses them again, so a saved document could be another's KV."""
    folder = make_config_folder(tmp_path / "model", mistral())
    with pytest.raises(ConfigError) as refused:
        await VllmEngine(small_engine(tmp_path), folder).start()
    assert str(refused.value) == (
        "RAGTree's connector does not support models whose layers all have a sliding window (here 64 tokens): "
        "set disable_sliding_window to true and max_model_len to at most 64"
    )


async def test_what_only_the_loaded_model_shows_is_refused_in_the_same_words(tmp_path):
    """The connector refuses in the engine's process, from which vLLM passes no reason on."""
    folder = make_tiny_model(tmp_path / "model", hidden_window())
    with pytest.raises(
        ConfigError, match=r"^RAGTree's connector does not support models whose layers all have a sliding"
    ):
        await VllmEngine(small_engine(tmp_path), folder).start()


@pytest.mark.parametrize("kind", [mistral, hidden_window, qwen3_next, lfm2])
async def test_any_other_model_is_served_without_the_connector(tmp_path, kind):
    """If KV need not be kept. Found out before the weights are loaded, or from the loaded model."""
    folder = make_tiny_model(tmp_path / "model", kind())
    path = kv_path((SYSTEM, FIRST, SECOND))
    # vLLM's kernels for states on a CPU compute in nothing else.
    engine = VllmEngine(small_engine(tmp_path, "auto").model_copy(update={"dtype": "bfloat16"}), folder)
    await engine.start()
    try:
        info = await engine.info()
        assert info.kv is None
        assert info.not_kept.startswith("RAGTree's connector does not support")
        first, again = [
            await generate(engine, path.plan(name, None, None), Sampling(TOKENS, logprobs=True))
            for name in ("why?", "again?")
        ]
        assert first.tokens == again.tokens == TOKENS
        assert again.prefill.loaded == {}
    finally:
        await engine.close()
