"""Which prompts warm up the systems of a replay."""

from collections.abc import Sequence

from protocol.prompts import Prompt
from ragtree_lab.measuring.baselines import BASELINES
from ragtree_lab.measuring.systems import OURS, OURS_EXACT
from ragtree_lab.workloads.prompt_streams import PromptStream
from ragtree_lab.workloads.retrieved_prompts import SeenDocuments

FILLED = 2
"""How many times a warm-up fills the cache of a baseline, which is LRU."""


def warm_up(stream: PromptStream, room: int, most: int) -> list[Prompt]:
    """Take the prompts whose documents fill tiers of ``room`` tokens, or ``most`` if that does not fill them.

    A cache that is not full yet evicts nothing, and has met fewer documents than it will hold. Raises ConfigError if
    the stream ends before.
    """
    seen = SeenDocuments()
    warming: list[Prompt] = []
    while len(warming) < most and seen.tokens < room:
        warming += stream.take(1)
        seen.add(warming[-1])
    return warming


def warm_up_of(name: str, prompts: Sequence[Prompt], cache_tokens: int) -> Sequence[Prompt]:
    """Return those of the ``prompts`` that the system ``name`` needs.

    vLLM's own cache is LRU, so the last prompts, which fill it twice, leave the same content as all of them.
    """
    if name in (OURS, OURS_EXACT):
        return prompts
    if not BASELINES[name].prefix_caching:
        return prompts[-1:]
    seen = SeenDocuments()
    for count, prompt in enumerate(reversed(prompts), start=1):
        seen.add(prompt)
        if seen.tokens > FILLED * cache_tokens:
            return prompts[-count:]
    return prompts
