"""KV that outlives its engine."""

from collections.abc import Sequence
from typing import NamedTuple

from examine.doctor.checks.engines import CachingEngine
from examine.doctor.context import Context
from examine.doctor.differences import differ
from examine.doctor.outcome import Outcome
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import KvPath
from examine.measuring.tier_rounds import forget, move
from protocol.prompts import Prompt
from protocol.tiers import Tier


class _Written(NamedTuple):
    """A prompt whose documents' KV one engine wrote to a tier, and its answer from there."""

    prompt: Prompt
    path: KvPath
    tier: Tier
    answer: Generation


class Restart:
    """Writes KV to each tier, damages a file on disk, and starts another engine over the same memory and folder."""

    name = "restart"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails if the next engine does not find the KV, answers wrongly from it, or uses the damaged file."""
        if not context.below:
            return Outcome.skipped("there is no tier below the engine's own memory")
        written = await _write(context)
        await context.engine.close()
        damaged = _damaged(context, written)
        engine = await context.engine.start_caching()
        held = {
            (report.tier, node.namespace, node.path) for report in await engine.residency() for node in report.nodes
        }
        for one in written:
            expected = [segment.key for segment in one.path.segments]
            there = (one.tier, one.path.namespace, tuple(expected)) in held
            if one is not damaged and not there:
                return Outcome.failed(f"the KV that an engine wrote to {one.tier} is not found by the next one")
            why = await _judge(context, one, one is damaged)
            if why:
                return Outcome.failed(why)
        counted = ", ".join(f"{sum(one.tier is tier for one in written)} from {tier}" for tier in context.below)
        after = "; a truncated file is computed again" if damaged is not None else ""
        return Outcome.passed(f"prompts answered by the next engine: {counted}{after}")


async def _write(context: Context) -> list[_Written]:
    """Write two prompts' KV to each tier, each prompt's to one."""
    written: list[_Written] = []
    first_page = 0
    prompts = iter(context.prompts)
    for tier in context.below:
        for prompt in (next(prompts), next(prompts)):
            path = KvPath(prompt.prefix, context.memory.paging, first_page=first_page)
            first_page += path.page_count
            await context.compute(path)
            await move(context.engine.running, path, Tier.GPU, tier)
            answer = await context.answer(path.plan(prompt.segments[-1], tier, None))
            await forget(context.engine.running, path, (Tier.GPU,))
            written.append(_Written(prompt, path, tier, answer))
    return written


def _damaged(context: Context, written: Sequence[_Written]) -> _Written | None:
    """Truncate the files of the last prompt's last document on disk. Returns that prompt, or None without a disk."""
    last = written[-1]
    if last.tier is not Tier.DISK:
        return None
    for file in context.engine.folder.rglob(f"{last.path.keys[-1]}.safetensors"):
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)
    return last


async def _judge(context: Context, one: _Written, damaged: bool) -> str:
    """Return what is wrong with an answer after the restart, or nothing."""
    answer = await context.answer(one.path.plan(one.prompt.segments[-1], one.tier, None))
    loaded = answer.prefill.loaded.get(one.tier, 0)
    tolerances = context.reference.tolerances
    if differ(answer, one.answer, tolerances.rounding if damaged else tolerances.repeat):
        return f"an answer with KV that an earlier engine wrote to {one.tier} is wrong: do not use it"
    if damaged and loaded == one.path.tokens:
        return "a truncated file of KV was used"
    if not damaged and loaded != one.path.tokens:
        return f"only {loaded} of {one.path.tokens} tokens that an engine wrote to {one.tier} were loaded by the next"
    return ""
