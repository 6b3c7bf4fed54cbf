"""Serves a small model of each family from every tier, beside plain vLLM with and without its own prefix cache.

Prompts with new documents compare the time to first token by where their KV is, and the time of later tokens. Their
answers from each tier must equal those of the request that has computed the KV. Then a stream of prompts, whose
documents come in changing sequences, runs with the cache and without any (``ragtree_lab.exactness``): tiers too small
for all documents, a restart halfway.

Limits: random weights. Small models say little about the speed of large ones: read ratios only. Without a cache, vLLM
computes layers with states in steps of other lengths, which round in other ways: so do two runs without it.
"""

import asyncio
import random
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import uuid4

import msgspec

from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.engines import generate
from examine.measuring.kv_paths import QUESTION_TOKENS, KvPath, random_segment
from examine.measuring.tier_rounds import carried_out, forget, move
from generator.adapters import read_adapter
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, InternalError
from protocol.generation import Sampling
from protocol.kv import KvMemory, Orders, PageGroup, with_adapter
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier
from ragtree_lab.exactness import NAMESPACE, ExactnessBenchmark, compare
from ragtree_lab.families.shapes import Family
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.measuring.random_model import make_random_adapter, make_random_model

TIERS = (Tier.GPU, Tier.HOST, Tier.DISK)
STREAMS = 16
_SEED = "families"
_DOCUMENTS = 3
"""Of a prompt."""
_TOKENS = (40, 400)
"""Of a document: the fewest and the most."""
_POOL = 12
"""Documents of the stream."""
_SMALL = {"gpu_share": 0.5, "host_gib": 0.016, "disk_gib": 0.06}
"""Tiers that do not hold all paths of the stream."""
_ANSWER_TOKENS = 8
_ANSWER = Sampling(_ANSWER_TOKENS, logprobs=True, ignore_eos=True)
_DECODED = Sampling(48, ignore_eos=True)


class FamilyRow(msgspec.Struct, frozen=True):
    """One family, or why it was ``refused``.

    ``groups`` describe what its layers keep. ``bytes_per_token`` are those of a long document without states, and
    ``bytes_per_state`` what the states after one take up. Of ``prompts``, ``mismatches`` had another token than without
    any cache, and the largest difference of logprobs before was ``logprob_difference``; ``same_mismatches`` are those
    of a second run without it. ``tier_mismatches`` counts the answers with KV from a tier that have another token than
    when it was computed. ``found_share`` is the share of the prompts' tokens that came from a tier, and
    ``tokens`` says which. ``ttft_ms`` are medians by case: ``computed``, vLLM's own prefix cache (``own_cache``),
    ``kept``, which is computed and kept, and the tiers. ``ms_per_token`` is the time of a later token ``without`` the
    connector and ``with`` it, and ``ms_per_token_16`` the same with 16 answers at once.
    """

    family: str
    dtype: str
    refused: str = ""
    groups: list[str] = []
    bytes_per_token: float = 0.0
    bytes_per_state: int = 0
    prompts: int = 0
    mismatches: int = 0
    same_mismatches: int = 0
    tier_mismatches: int = 0
    logprob_difference: float = 0.0
    found_share: float = 0.0
    tokens: dict[str, int] = {}
    ttft_ms: dict[str, float] = {}
    ms_per_token: dict[str, float] = {}
    ms_per_token_16: dict[str, float] = {}


class FamiliesResult(msgspec.Struct, frozen=True):
    """All families that were asked for."""

    rows: list[FamilyRow]


class FamiliesBenchmark:
    """Asks ``prompts`` prompts to a model of each family. ``settings`` name the model whose tokenizer all have.

    ``profiles`` is the folder of cost profiles.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        controller: ControllerSettings,
        models: ModelStore,
        profiles: Path,
        prompts: int,
    ) -> None:
        self._settings = settings
        self._controller = controller
        self._models = models
        self._profiles = profiles
        self._prompts = prompts

    async def run(self, families: Mapping[str, Family], progress: Progress) -> FamiliesResult:
        """Measure one family after the other. ``progress`` is called with (step, done, total).

        What vLLM or the connector refuses is part of a result. Raises what else the engines raise.
        """
        rows = []
        for name, family in families.items():

            def show(step: str, done: int, total: int, name: str = name) -> None:
                progress(f"{name}: {step}", done, total)

            try:
                rows.append(await self._family(name, family, show))
            except ConfigError as error:
                rows.append(FamilyRow(name, family.dtype, error.message))
        return FamiliesResult(rows)

    async def _family(self, name: str, family: Family, progress: Progress) -> FamilyRow:
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as scratch:
            folder = Path(scratch)
            model = make_random_model(folder / "model", self._models.resolve(self._settings.model), family.shape)
            adapters = [make_random_adapter(folder / f"a{number}", model, number) for number in range(family.adapters)]
            digests = [read_adapter(adapter.name, adapter, model).digest for adapter in adapters]
            settings = self._settings.model_copy(
                update={
                    "model": str(model),
                    "adapters": {adapter.name: str(adapter) for adapter in adapters},
                    "dtype": family.dtype,
                    "max_model_len": 2048,
                    "max_num_seqs": STREAMS,
                    "engine_args": {**self._settings.engine_args, **family.engine_args},
                }
            )
            row = await self._timed(FamilyRow(name, family.dtype), settings, folder / "kv", progress)
            exact = ExactnessBenchmark(
                ComparedEngines(settings, self._models),
                self._controller,
                self._profiles,
                family.dtype,
                _ANSWER_TOKENS,
                self._prompts,
                small=_SMALL,
                namespaces=[with_adapter(NAMESPACE, digest) for digest in ("", *digests)],
                # Each group has blocks of its own. Those of models with states are longer.
                groups=1 if row.bytes_per_state else len(row.groups),
            )
            found = await exact.run(stream(self._prompts), progress)
        return msgspec.structs.replace(
            row,
            prompts=found.prompts,
            mismatches=found.mismatches,
            same_mismatches=found.without_cache.mismatches,
            logprob_difference=found.largest_logprob_difference,
            found_share=1 - found.tokens["computed"] / sum(found.tokens.values()),
            tokens=found.tokens,
        )

    async def _timed(self, row: FamilyRow, settings: GeneratorSettings, disk: Path, progress: Progress) -> FamilyRow:
        """Times of both engines, side by side."""
        engines = ComparedEngines(settings, self._models, at_once=2)
        async with engines.plain() as plain, engines.caching(disk) as caching:
            memory = (await caching.info()).kv
            if memory is None:
                raise InternalError("the engine keeps no KV, so there is nothing to measure")
            timed = _Rounds(plain, caching, memory, [one.digest for one in (await caching.info()).adapters.values()])
            for number in range(self._prompts + 1):
                progress("times", number, self._prompts + 1)
                # The first one warms up both engines.
                path = await timed.ask(f"{_SEED} {number}", counts=number > 0)
                await timed.decode(path, counts=number > 0)
            progress("times", self._prompts + 1, self._prompts + 1)
        paging = memory.paging
        states = sum(group.states for group in paging.groups)
        # As long as makes whole pages in all groups.
        long = paging.page_tokens * 64 * max(group.times for group in paging.groups)
        return msgspec.structs.replace(
            row,
            groups=[_described(group) for group in paging.groups],
            bytes_per_token=(paging.page_count(0, long) - states) * memory.page_bytes / long,
            bytes_per_state=states * memory.page_bytes,
            tier_mismatches=timed.mismatches,
            ttft_ms={case: median(times) for case, times in timed.ttft.items()},
            ms_per_token={side: median(times) for side, times in timed.alone.items()},
            ms_per_token_16={side: median(times) for side, times in timed.beside.items()},
        )


def stream(prompts: int) -> list[Prompt]:
    """Prompts of documents from a pool, some more popular than others, in changing sequences. The same each time."""
    draws = random.Random(_SEED)  # noqa: S311 - a repeatable draw
    system = random_segment(f"system {_SEED}", 32, SegmentKind.SYSTEM)
    pool = [_document(f"{_SEED} pool {number}", draws) for number in range(_POOL)]
    chances = [1 / rank for rank in range(1, _POOL + 1)]
    made = []
    for number in range(prompts):
        chosen: list[Segment] = []
        while len(chosen) < _DOCUMENTS:
            chosen += [one for one in draws.choices(pool, chances) if one not in chosen]
        question = random_segment(f"{_SEED} question {number}", QUESTION_TOKENS, SegmentKind.QUESTION)
        made.append(Prompt((system, *chosen, question)))
    return made


def _document(key: str, draws: random.Random) -> Segment:
    return random_segment(key, draws.randint(*_TOKENS))


class _Rounds:
    """Asks prompt after prompt, and keeps the times: ``ttft`` by case, and those of later tokens.

    ``mismatches`` counts the answers with KV from a tier that have another token than when it was computed.
    """

    def __init__(self, plain: VllmEngine, caching: VllmEngine, memory: KvMemory, adapters: Sequence[str]) -> None:
        self._plain = plain
        self._caching = caching
        self._memory = memory
        # Digests of the weights that take turns. None is the model's own.
        self._weights = cycle(("", *adapters))
        self.ttft: dict[str, list[float]] = defaultdict(list)
        self.alone: dict[str, list[float]] = defaultdict(list)
        self.beside: dict[str, list[float]] = defaultdict(list)
        self._sides = ["without", "with"]
        self.mismatches = 0

    async def ask(self, key: str, counts: bool) -> KvPath:
        """Ask one question behind new documents, from wherever they are."""
        draws = random.Random(key)  # noqa: S311 - a repeatable draw
        system = random_segment(f"system {key}", 32, SegmentKind.SYSTEM)
        documents = [_document(f"{key} {rank}", draws) for rank in range(_DOCUMENTS)]
        namespace = with_adapter(uuid4().hex, next(self._weights))
        path = KvPath((system, *documents), self._memory.paging, namespace)
        plain, caching = self._plain, self._caching
        came = {
            "computed": await generate(plain, path.plan("first", None, None), _ANSWER),
            "own_cache": await generate(plain, path.plan("second", None, None), _ANSWER),
            "kept": await generate(caching, path.plan("second", None, Tier.GPU), _ANSWER),
        }
        source = Tier.GPU
        for tier in TIERS:
            if tier is not source:
                await move(caching, path, source, tier)
            kept = tier if tier is Tier.GPU else None
            came[tier] = await generate(caching, path.plan("second", tier, kept), _ANSWER)
            if came[tier].prefill.loaded.get(tier, 0) < path.tokens:
                raise InternalError(f"only {came[tier].prefill.loaded} of {path.tokens} tokens came from {tier}")
            source = tier
        await carried_out(caching, Orders(path.moves(source, None)))
        await forget(caching, path)
        self.mismatches += compare([came["kept"]] * len(TIERS), [came[tier] for tier in TIERS]).mismatches
        if counts:
            for case, answer in came.items():
                self.ttft[str(case)].append(answer.ttft_ms)
        return path

    async def decode(self, path: KvPath, counts: bool) -> None:
        """Answer a question at length, alone and beside others, with the connector and without."""
        # The first one of a round is a little slower, so that they take turns.
        self._sides.reverse()
        alone = {side: await self._token_ms(side, [path]) for side in self._sides}
        beside = {side: await self._token_ms(side, [path] * STREAMS) for side in self._sides}
        if counts:
            for side, took in alone.items():
                self.alone[side].append(took)
                self.beside[side].append(beside[side])

    async def _token_ms(self, side: str, paths: Sequence[KvPath]) -> float:
        """Milliseconds of a token after the first, of answers side by side."""
        engine = self._caching if side == "with" else self._plain
        # So that all decode at the same time, and none prefills meanwhile.
        question = random_segment(f"{_SEED} decoded", QUESTION_TOKENS, SegmentKind.QUESTION)
        await generate(engine, paths[0].plan(question, None, None), Sampling(1))
        began = perf_counter()
        answers = await asyncio.gather(*(generate(engine, path.plan(question, None, None), _DECODED) for path in paths))
        took = (perf_counter() - began) * 1000
        return (took - max(answer.ttft_ms for answer in answers)) / (_DECODED.max_tokens - 1)


def _described(group: PageGroup) -> str:
    """What the layers of a group keep, for people."""
    if group.states:
        return "states"
    kind = f"chunks of {group.window}" if group.chunks else f"a window of {group.window}"
    return kind if group.window else "all tokens"
