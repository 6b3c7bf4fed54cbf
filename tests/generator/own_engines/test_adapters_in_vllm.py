"""Adapters answer as models with their weights merged would, from every tier, and find no KV of each other."""

import asyncio
import shutil
from uuid import uuid4

import pytest
import stamina
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, held, put
from safetensors.torch import load_file, save_file
from tiny_adapters import make_adapter, merged
from tiny_models import continuation

from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath
from generator.adapters import read_adapter
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import Conflict, InvalidRequest, UnknownModel
from protocol.generation import Sampling, ServedAdapter
from protocol.kv import with_adapter

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm]

TOKENS = 8


def renamed(folder, adapter):
    """The same adapter, with another name of one layer than the model has."""
    shutil.copytree(adapter, folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    part = "layers.0.self_attn.q_proj"
    changed = {name.replace(f"model.{part}", part): tensor for name, tensor in tensors.items()}
    assert changed.keys() != tensors.keys()
    save_file(changed, folder / "adapter_model.safetensors")
    return folder


async def test_adapters_are_exact_from_every_tier(tmp_path, tiny_model):
    names = ("legal", "terse", "later")
    folders = {name: make_adapter(tmp_path / name, tiny_model, seed) for seed, name in enumerate(names)}
    legal, terse, later = (read_adapter(name, folder, tiny_model) for name, folder in folders.items())
    models = {"": tiny_model} | {
        adapter.digest: merged(tmp_path / f"{adapter.name}-merged", tiny_model, adapter.folder)
        for adapter in (legal, terse)
    }
    settings = small_engine(tmp_path)
    room = {"max_loras": 2}
    settings = settings.model_copy(update={"engine_args": settings.engine_args | room})
    engine = VllmEngine(settings, tiny_model, adapters=[legal])
    await engine.start()
    try:
        info = await engine.info()
        assert info.adapters == {"legal": ServedAdapter(legal.digest)}
        assert info.not_composing == "the engine serves adapters"
        sampling = Sampling(TOKENS, logprobs=True)
        # vLLM looks for layers by their whole names, and passes over others without a word.
        with pytest.raises(InvalidRequest, match=r"applies nothing of its layer layers\.0\.self_attn\.q_proj"):
            await engine.load_adapter("in part", str(renamed(tmp_path / "part", terse.folder)))
        # While others are served.
        meanwhile = KvPath((SYSTEM, FIRST), info.kv.paging, uuid4().hex).plan("why?", None, None)
        answer, digest = await asyncio.gather(
            generate(engine, meanwhile, sampling), engine.load_adapter("terse", str(terse.folder))
        )
        assert digest == terse.digest
        expected = continuation(tiny_model, meanwhile.prompt.token_ids, TOKENS).token_ids
        assert tuple(token.token_id for token in answer.logprobs) == expected
        info = await engine.info()
        assert info.adapters == {
            "legal": ServedAdapter(legal.digest),
            "terse": ServedAdapter(terse.digest, str(terse.folder)),
        }
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

        # Another one takes its place.
        with pytest.raises(Conflict, match="All 2 places"):
            await engine.load_adapter("later", str(later.folder))
        await engine.unload_adapter("terse")
        gone = KvPath((SYSTEM,), info.kv.paging, with_adapter(tenant, terse.digest)).plan("why?", None, None)
        with pytest.raises(UnknownModel, match="not loaded"):
            await generate(engine, gone, sampling)
        async for attempt in stamina.retry_context(on=Conflict, timeout=20):
            with attempt:
                await engine.load_adapter("later", str(later.folder))
        models = {"": tiny_model, later.digest: merged(tmp_path / "later-merged", tiny_model, later.folder)}
        models[legal.digest] = tmp_path / "legal-merged"
        plans = [
            KvPath((SYSTEM, FIRST), info.kv.paging, with_adapter(uuid4().hex, digest)).plan("why?", None, None)
            for digest in models
        ]
        together = await asyncio.gather(*(generate(engine, plan, sampling) for plan in plans))
        for model, plan, answer in zip(models.values(), plans, together, strict=True):
            expected = continuation(model, plan.prompt.token_ids, TOKENS).token_ids
            assert tuple(token.token_id for token in answer.logprobs) == expected
    finally:
        await engine.close()
