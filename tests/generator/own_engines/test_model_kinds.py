"""Models of several kinds of KV are served from all tiers, and others without the connector, if they may."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, forget_blocks, kv_path, put, segment
from tiny_models import (
    WINDOW,
    continuation,
    deepseek,
    gemma4,
    gemma4_shared,
    gpt_oss,
    hidden_window,
    lfm2,
    llama,
    llama4,
    make_tiny_model,
    mistral,
    qwen3_next,
)

from examine.doctor.checks.drafts import draft_counts
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.kv import Paging
from protocol.tiers import Tier

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm]

TOKENS = 8
NEEDS_AVX512 = pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vLLM's kernels need AVX-512")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        pytest.param(gemma4, {}, id="gemma4"),
        pytest.param(gemma4_shared, {}, id="gemma4, KV shared by layers"),
        pytest.param(llama4, {}, id="llama4, chunks"),
        pytest.param(gpt_oss, {}, id="gpt-oss"),
        pytest.param(gpt_oss, {"enable_prefix_caching": False}, id="gpt-oss, no cache of the engine's own"),
        pytest.param(gpt_oss, {"disable_hybrid_kv_cache_manager": True}, id="gpt-oss, all tokens kept"),
    ],
)
async def test_sliding_windows_beside_full_attention_are_exact_from_every_tier(tmp_path, kind, given):
    """Compared with transformers, over a prompt of five windows."""
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
    settings.engine_args |= given
    async with started(settings, folder) as engine:
        memory = (await engine.info()).kv
        assert memory.paging.has_windows == ("disable_hybrid_kv_cache_manager" not in given)
        for tier in (None, GPU, HOST, DISK):
            for answer in await from_tier(engine, path, tier, memory.paging):
                assert tuple(token.token_id for token in answer.logprobs) == expected.token_ids
                assert [token.logprob for token in answer.logprobs] == pytest.approx(expected.logprobs, abs=1e-3)


@pytest.mark.parametrize("kind", [mistral, hidden_window])
async def test_sliding_windows_alone_are_exact_from_every_tier(tmp_path, kind):
    """Compared with what the engine computes: transformers has other windows."""
    folder = make_tiny_model(tmp_path / "model", kind())
    path = kv_path((SYSTEM, FIRST, SECOND))
    async with started(small_engine(tmp_path), folder) as engine:
        paging = (await engine.info()).kv.paging
        assert [group.window for group in paging.groups] == [WINDOW]
        (expected,) = await from_tier(engine, path, None, paging)
        (other,) = await from_tier(engine, kv_path((SYSTEM, FIRST, segment("another", 200))), None, paging)
        assert [token.logprob for token in other.logprobs] != [token.logprob for token in expected.logprobs]
        for tier in (GPU, HOST, DISK):
            for answer in await from_tier(engine, path, tier, paging):
                assert [token.token_id for token in answer.logprobs] == [token.token_id for token in expected.logprobs]
                logprobs = [token.logprob for token in expected.logprobs]
                assert [token.logprob for token in answer.logprobs] == pytest.approx(logprobs, abs=1e-3)


async def test_what_a_draft_model_keeps_comes_from_every_tier_with_the_rest(tmp_path):
    """The draft is the model itself: it drafts right tokens as long as its own KV of the documents is right."""
    folder = make_tiny_model(tmp_path / "model", llama())
    settings = small_engine(tmp_path)
    drafts = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}
    settings.engine_args["speculative_config"] = drafts
    path = kv_path((SYSTEM, FIRST, SECOND))
    expected = continuation(folder, path.plan("why?", None, None).prompt.token_ids, TOKENS)
    async with started(settings, folder) as engine:
        info = await engine.info()
        assert "layer draft_model.model.layers.0.self_attn.attn cannot be composed" in info.not_composing
        for tier in (None, GPU, HOST, DISK):
            drafted, accepted = await draft_counts(engine)
            for answer in await from_tier(engine, path, tier, info.kv.paging):
                assert tuple(token.token_id for token in answer.logprobs) == expected.token_ids
            counts = await draft_counts(engine)
            assert counts[0] > drafted
            assert counts[1] - accepted > 0.7 * (counts[0] - drafted)
    other = llama()
    other.vocab_size //= 2
    drafts["model"] = str(make_tiny_model(tmp_path / "other", other))
    with pytest.raises(ConfigError, match="should have the same vocabulary size"):
        await VllmEngine(settings, folder).start()


@asynccontextmanager
async def started(settings: GeneratorSettings, folder: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(settings, folder)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def from_tier(engine: VllmEngine, path: KvPath, tier: Tier | None, paging: Paging) -> list[Generation]:
    """The answers to a question behind a path that a tier has: read from there, and then from the GPU."""
    stored = KvPath(path.segments, paging)
    sampling = Sampling(TOKENS, logprobs=True)
    if tier is not None:
        await put(engine, stored, tier)
    answers = [await generate(engine, stored.plan("why?", tier, None if tier is None else GPU), sampling)]
    assert answers[0].prefill.loaded == ({} if tier is None else {tier: path.tokens})
    if tier is not None:
        answers.append(await generate(engine, stored.plan("why?", GPU, None), sampling))
        # The engine finds the first block of the question, too.
        assert answers[1].prefill.loaded.keys() == {GPU}
    return answers


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        pytest.param(llama, {"engine_args": {"kv_cache_dtype": "fp8"}}, id="fp8", marks=NEEDS_AVX512),
        pytest.param(
            llama,
            {"engine_args": {"kv_cache_dtype": "fp8_e5m2"}},
            id="fp8 with five bits of exponent",
            marks=NEEDS_AVX512,
        ),
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


async def test_what_only_the_loaded_model_shows_is_refused_in_the_connectors_words(tmp_path):
    """The connector refuses in the engine's process, from which vLLM passes no reason on."""
    folder = make_tiny_model(tmp_path / "model", gpt_oss())
    settings = small_engine(tmp_path)
    settings.kv.page_layout = "neutral"
    with pytest.raises(ConfigError, match=r"^pages of a model whose layers keep different kinds of KV have no neutral"):
        await VllmEngine(settings, folder).start()


@pytest.mark.parametrize("kind", [qwen3_next, lfm2])
async def test_states_beside_attention_are_exact_from_every_tier(tmp_path, kind):
    """Compared with the answer of the request that has computed them: steps of other lengths round in other ways."""
    folder = make_tiny_model(tmp_path / "model", kind())
    path = kv_path((SYSTEM, FIRST, SECOND))
    # vLLM's kernels for states on a CPU compute in nothing else.
    settings = small_engine(tmp_path).model_copy(update={"dtype": "bfloat16"})
    async with started(settings, folder) as engine:
        paging = (await engine.info()).kv.paging
        assert paging.has_states
        stored = KvPath(path.segments, paging)
        sampling = Sampling(TOKENS, logprobs=True)
        expected = await generate(engine, stored.plan("why?", None, GPU), sampling)
        assert expected.prefill.loaded == {}
        other = kv_path((SYSTEM, segment("another", len(FIRST.token_ids)), SECOND))
        differs = await generate(engine, KvPath(other.segments, paging).plan("why?", None, GPU), sampling)
        assert differs.logprobs != expected.logprobs
        for tier in (GPU, HOST, DISK):
            # What the engine finds itself ends within a document, and so there is no state at the ends of others.
            await forget_blocks(engine, stored)
            for answer in await from_tier(engine, path, tier, paging):
                assert [token.token_id for token in answer.logprobs] == [token.token_id for token in expected.logprobs]
                logprobs = [token.logprob for token in expected.logprobs]
                assert [token.logprob for token in answer.logprobs] == pytest.approx(logprobs, abs=1e-3)
