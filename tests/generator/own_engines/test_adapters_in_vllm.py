"""Adapters answer as models with their weights merged would, from every tier, and find no KV of each other."""

import asyncio
from uuid import uuid4

import pytest
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, held, put
from tiny_adapters import make_adapter, merged
from tiny_models import continuation

from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath
from generator.adapters import read_adapter
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import UnknownModel
from protocol.generation import Sampling
from protocol.kv import with_adapter

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm]

TOKENS = 8


async def test_adapters_are_exact_from_every_tier(tmp_path, tiny_model):
    folders = {name: make_adapter(tmp_path / name, tiny_model, seed) for seed, name in enumerate(("legal", "terse"))}
    adapters = [read_adapter(name, folder, tiny_model) for name, folder in folders.items()]
    models = {"": tiny_model} | {
        adapter.digest: merged(tmp_path / f"{adapter.name}-merged", tiny_model, adapter.folder) for adapter in adapters
    }
    engine = VllmEngine(small_engine(tmp_path), tiny_model, adapters=adapters)
    await engine.start()
    try:
        info = await engine.info()
        assert info.adapters == {adapter.name: adapter.digest for adapter in adapters}
        assert info.not_composing == "the engine serves adapters"
        sampling = Sampling(TOKENS, logprobs=True)
        answers = {}
        for tier in (None, GPU, HOST, DISK):
            tenant = uuid4().hex
            paths = {
                digest: KvPath((SYSTEM, FIRST, SECOND), info.kv.paging, with_adapter(tenant, digest), 40 * at)
                for at, digest in enumerate(models)
            }
            if tier is not None:
                for path in paths.values():
                    await put(engine, path, tier)
                assert {path.namespace for path in paths.values()} <= {name for name, _ in await held(engine, tier)}
            plans = [path.plan("why?", tier, None) for path in paths.values()]
            together = await asyncio.gather(*(generate(engine, plan, sampling) for plan in plans))
            for digest, answer in zip(paths, together, strict=True):
                assert answer.prefill.loaded == ({} if tier is None else {tier: paths[digest].tokens})
                if digest not in answers:
                    answers[digest] = continuation(models[digest], plans[0].prompt.token_ids, TOKENS)
                assert tuple(token.token_id for token in answer.logprobs) == answers[digest].token_ids
                logprobs = [token.logprob for token in answer.logprobs]
                assert logprobs == pytest.approx(answers[digest].logprobs, abs=1e-3)
        assert len({answer.token_ids for answer in answers.values()}) == len(models)

        gone = KvPath((SYSTEM,), info.kv.paging, with_adapter(tenant, "0" * 32)).plan("why?", None, None)
        with pytest.raises(UnknownModel, match="not loaded"):
            await generate(engine, gone, sampling)
    finally:
        await engine.close()
