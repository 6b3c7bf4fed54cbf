"""Models with sliding windows are served exactly if they also have full attention, and refused otherwise."""

import pytest
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, kv_path, put, segment
from tiny_models import (
    WINDOW,
    continuation,
    gemma4,
    gpt_oss,
    hidden_window,
    make_config_folder,
    make_tiny_model,
    mistral,
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
