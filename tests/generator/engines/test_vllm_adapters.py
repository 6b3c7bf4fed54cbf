"""Adapters that come and go in a running engine. vLLM is a stand-in here; own_engines has the real one."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_adapters import RANK, make_adapter

from generator.adapters import read_adapter
from generator.engines import vllm_adapters
from generator.engines.vllm_adapters import VllmAdapters
from generator.engines.vllm_arguments import WORKER_EXTENSION
from generator.engines.vllm_requests import VllmRequests
from protocol.errors import ConfigError, Conflict, EngineDied, EngineNotReady, InvalidRequest, UnknownModel
from protocol.generation import ServedAdapter

PLACES = 2
PARAMETERS = SimpleNamespace(seed=None, structured_outputs=None)


class LoadingEngine:
    """Stands in for vLLM: it loads an adapter, or says why not, and somebody changes the adapter's files meanwhile."""

    def __init__(self, change=lambda: None, refusal=None, errored=False, effect=1.0):
        self.change, self.refusal, self.errored, self.effect = change, refusal, errored, effect
        self.loaded, self.numbers, self.unapplied = {}, [], []
        self.keeps = False
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(worker_extension_cls=WORKER_EXTENSION),
            lora_config=SimpleNamespace(max_loras=PLACES, max_lora_rank=2 * RANK),
        )
        self.answering = asyncio.Event()
        self.answering.set()

    async def generate(self, prompt, params, request_id, lora_request=None):
        probable = {1: SimpleNamespace(logprob=-1.0 - (self.effect if lora_request else 0.0))}
        await self.answering.wait()
        yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason="length", logprobs=[probable])])

    async def add_lora(self, request):
        if self.errored:
            # vLLM never answers for a dead engine.
            await asyncio.Event().wait()
        assert len(self.loaded) < PLACES, "vLLM would drop another one"
        # vLLM gives it a place before it looks at the sizes of its layers.
        self.loaded[request.lora_int_id] = (request.lora_name, request.lora_path)
        self.numbers.append(request.lora_int_id)
        if self.refusal is not None:
            raise self.refusal
        self.change()
        return True

    async def collective_rpc(self, method, args):
        assert (method, set(args)) == ("unapplied_adapter_layers", {self.numbers[-1]})
        return [[], self.unapplied]

    async def remove_lora(self, number):
        if self.keeps:
            raise RuntimeError("vLLM fails")
        return self.loaded.pop(number, None) is not None


@pytest.fixture(autouse=True)
def all_places(monkeypatch):
    monkeypatch.setattr(vllm_adapters, "adapter_places", lambda config: config.max_loras)


@pytest.fixture
def adapter(tmp_path, tiny_model):
    return make_adapter(tmp_path / "adapter", tiny_model, seed=1)


@pytest.fixture
def folders(tmp_path, tiny_model):
    return [str(make_adapter(tmp_path / f"a{seed}", tiny_model, seed)) for seed in range(4)]


@pytest.fixture
def adapters_in(tiny_model):
    made = []

    def make(engine, *configured):
        requests = VllmRequests(engine)
        adapters = VllmAdapters(
            engine, requests, configured, lambda name, place: read_adapter(name, Path(place), tiny_model)
        )
        made.append(adapters)
        return requests, adapters

    yield make
    for adapters in made:
        adapters.close()


async def answer(requests, digest, name="q"):
    return [output async for output in requests.generate(name, [1], "salt", PARAMETERS, digest)]


async def settled(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_loading_gives_each_digest_a_number(adapter, tiny_model, adapters_in):
    engine, twice = LoadingEngine(), [read_adapter(name, adapter, tiny_model) for name in ("legal", "the same")]
    _, adapters = adapters_in(engine, *twice)
    await adapters.start()
    assert engine.loaded == {1: (twice[0].digest, str(adapter))}
    assert adapters.served == {name: ServedAdapter(twice[0].digest) for name in ("legal", "the same")}


async def test_files_that_change_while_they_are_loaded_are_refused(adapter, tiny_model, adapters_in):
    engine = LoadingEngine(lambda: make_adapter(adapter, tiny_model, seed=2))
    with pytest.raises(ConfigError, match="'legal' cannot be served: its files changed"):
        await adapters_in(engine, read_adapter("legal", adapter, tiny_model))[1].start()


async def test_an_adapter_without_effect_is_refused(adapter, tiny_model, adapters_in):
    engine = LoadingEngine(effect=0.0)
    with pytest.raises(ConfigError, match="'legal' cannot be served: it changes nothing"):
        await adapters_in(engine, read_adapter("legal", adapter, tiny_model))[1].start()
    assert engine.loaded == {}


async def test_an_adapter_that_vllm_applies_in_part_is_refused(adapter, tiny_model, adapters_in):
    engine = LoadingEngine()
    engine.unapplied = ["language_model.layers.1.mlp.up_proj", "language_model.layers.0.mlp.up_proj"]
    with pytest.raises(ConfigError, match=r"applies nothing of its layer language_model\.layers\.0\.\S+ and 1 more"):
        await adapters_in(engine, read_adapter("legal", adapter, tiny_model))[1].start()
    assert engine.loaded == {}


async def test_what_vllm_refuses_is_refused_by_name(adapter, tiny_model, adapters_in):
    engine = LoadingEngine(refusal=ValueError("no DoRA"))
    with pytest.raises(ConfigError, match=r"'legal' cannot be served: vLLM refuses it \(no DoRA\)"):
        await adapters_in(engine, read_adapter("legal", adapter, tiny_model))[1].start()
    assert engine.loaded == {}


async def test_a_place_that_vllm_does_not_free_is_given_to_nobody(folders, adapters_in):
    engine = LoadingEngine()
    _, adapters = adapters_in(engine)
    await adapters.load("a", folders[0])
    engine.keeps = True
    await adapters.unload("a")
    await settled(lambda: not adapters._loaded)
    await adapters.load("b", folders[1])
    with pytest.raises(Conflict, match="All 2 places"):
        await adapters.load("a", folders[0])


async def test_an_engine_that_is_closed_says_so(folders, adapters_in):
    engine = LoadingEngine()
    _, adapters = adapters_in(engine)
    engine.answering.clear()
    asked = asyncio.create_task(adapters.load("legal", folders[0]))
    await settled(lambda: engine.loaded)
    adapters.close()
    with pytest.raises(EngineNotReady):
        await asked


async def test_an_engine_that_dies_while_it_loads_one_ends_the_start(adapter, tiny_model, adapters_in):
    with pytest.raises(EngineDied):
        await adapters_in(LoadingEngine(errored=True), read_adapter("legal", adapter, tiny_model))[1].start()


async def test_what_a_release_of_vllm_would_pass_over_is_refused(adapter, tiny_model, adapters_in):
    read = read_adapter("legal", adapter, tiny_model)._replace(features=frozenset({"use_rslora", "new_feature"}))
    with pytest.raises(ConfigError, match="this release of vLLM knows no new_feature"):
        await adapters_in(LoadingEngine(), read)[1].start()


async def test_one_that_comes_later_is_offered_under_its_name(folders, adapters_in):
    engine = LoadingEngine()
    requests, adapters = adapters_in(engine)
    digest = await adapters.load("legal", folders[0])
    assert adapters.served == {"legal": ServedAdapter(digest, folders[0])}
    assert await answer(requests, digest)
    # Asked again, it is there.
    assert await adapters.load("legal", folders[0]) == digest
    assert engine.numbers == [1]
    with pytest.raises(Conflict, match="served with other files: unload it first"):
        await adapters.load("legal", folders[1])
    assert adapters.served == {"legal": ServedAdapter(digest, folders[0])}


async def test_one_that_is_unloaded_serves_what_has_begun_and_nothing_else(folders, adapters_in):
    engine = LoadingEngine()
    requests, adapters = adapters_in(engine)
    digest = await adapters.load("legal", folders[0])
    engine.answering.clear()
    begun = asyncio.create_task(answer(requests, digest))
    await settled(lambda: "q" in requests._running)
    await adapters.unload("legal")
    assert adapters.served == {}
    with pytest.raises(UnknownModel):
        await answer(requests, digest, "later")
    assert set(engine.loaded) == {1}
    engine.answering.set()
    assert await begun
    await settled(lambda: not engine.loaded)
    with pytest.raises(UnknownModel):
        await adapters.unload("legal")


async def test_places_are_refused_rather_than_taken(folders, adapters_in):
    engine = LoadingEngine()
    requests, adapters = adapters_in(engine)
    first = await adapters.load("a", folders[0])
    await adapters.load("b", folders[1])
    with pytest.raises(Conflict, match="All 2 places for adapters are taken"):
        await adapters.load("c", folders[2])
    # The place of one that requests still use is taken, too; and they take it back.
    engine.answering.clear()
    begun = asyncio.create_task(answer(requests, first))
    await settled(lambda: requests._running)
    await adapters.unload("a")
    with pytest.raises(Conflict, match="All 2 places for adapters are taken"):
        await adapters.load("c", folders[2])
    assert await adapters.load("again", folders[0]) == first
    engine.answering.set()
    assert await begun
    assert await answer(requests, first)
    assert engine.numbers == [1, 2]
    # Once it is free, the place is the next one's, under a number of its own.
    await adapters.unload("again")
    await settled(lambda: set(engine.loaded) == {2})
    await adapters.load("c", folders[2])
    assert engine.numbers == [1, 2, 3]


async def test_two_names_of_one_adapter_are_unloaded_one_by_one(folders, adapters_in):
    engine = LoadingEngine()
    requests, adapters = adapters_in(engine)
    digest = await adapters.load("a", folders[0])
    assert await adapters.load("b", folders[0]) == digest
    await adapters.unload("a")
    assert await answer(requests, digest)
    await adapters.unload("b")
    await settled(lambda: not engine.loaded)


async def test_configured_ones_stay(adapter, folders, tiny_model, adapters_in):
    _, adapters = adapters_in(LoadingEngine(), read_adapter("legal", adapter, tiny_model))
    await adapters.start()
    with pytest.raises(Conflict, match=r"one of generator\.adapters"):
        await adapters.unload("legal")
    with pytest.raises(Conflict, match=r"one of generator\.adapters"):
        await adapters.load("legal", str(adapter))


async def test_what_cannot_be_served_takes_no_place(tmp_path, folders, tiny_model, adapters_in):
    engine = LoadingEngine()
    _, adapters = adapters_in(engine)
    large = make_adapter(tmp_path / "large", tiny_model, seed=1, rank=3 * RANK)
    for source, words in ((str(tmp_path / "none"), "has no adapter_config.json"), (str(large), "its rank is 12")):
        with pytest.raises(InvalidRequest, match=words) as refused:
            await adapters.load("legal", source)
        assert refused.value.param == "source"
    engine.effect = 0.0
    with pytest.raises(InvalidRequest, match="it changes nothing"):
        await adapters.load("legal", folders[0])
    assert (adapters.served, engine.loaded) == ({}, {})
    engine.effect = 1.0
    await adapters.load("legal", folders[0])


async def test_an_engine_without_room_says_so(folders, adapters_in):
    engine = LoadingEngine()
    engine.vllm_config.lora_config = None
    with pytest.raises(Conflict, match=r"no place for adapters; start it with generator\.engine_args\.max_loras"):
        await adapters_in(engine)[1].load("legal", folders[0])


async def test_a_caller_that_goes_away_does_not_interrupt_it(folders, adapters_in):
    engine = LoadingEngine()
    _, adapters = adapters_in(engine)
    engine.answering.clear()
    asked = asyncio.create_task(adapters.load("legal", folders[0]))
    await settled(lambda: engine.loaded)
    asked.cancel()
    engine.answering.set()
    await settled(lambda: adapters.served)
    await adapters.load("legal", folders[0])
    assert engine.numbers == [1]
