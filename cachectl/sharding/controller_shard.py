"""One of several controllers: its part of every budget, and the namespaces that are its own."""

from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from cachectl.settings import ControllerSettings
from protocol.generation import StepBudget

_MARK = "#"
"""Stands between a namespace and the number of a shard. No namespace contains it."""


@dataclass(frozen=True)
class ControllerShard:
    """Shard ``number`` of ``count``. A lone one changes nothing.

    Each shard keeps its own tree over a part of every tier, so no two of them ever decide about the same copy.
    Plans and tiers know the shard by the namespace: the same prompt has other keys in another shard.
    """

    number: int = 0
    count: int = 1

    def namespace(self, plain: str) -> str:
        """The shard's name of a namespace."""
        return plain if self.count == 1 else f"{plain}{_MARK}{self.number}"

    def plain(self, namespace: str) -> str:
        """The namespace without the shard."""
        return namespace.partition(_MARK)[0]

    def owns(self, namespace: str) -> bool:
        """Whether a namespace is this shard's."""
        return namespace == self.namespace(self.plain(namespace))

    def disowns(self, namespace: str) -> bool:
        """Whether a namespace is no shard's, and this one has its KV dropped: there were more shards, or only one."""
        _, marked, number = namespace.partition(_MARK)
        if self.count == 1:
            return bool(marked)
        return self.number == 0 and not (number.isdecimal() and int(number) < self.count)

    def share(self, amount: int) -> int:
        """The shard's part of a budget."""
        return amount // self.count

    def first(self, amount: int) -> int:
        """Where the shard's part of numbered things begins."""
        return self.number * self.share(amount)

    def rank(self, instance: str) -> int:
        """The order in which the shard takes equal instances. A lone controller takes the first one.

        It is another one in each shard, because none knows the others' load.
        """
        return 0 if self.count == 1 else xxh3_64_intdigest(instance.encode(), seed=self.number) >> 1

    def settings(self, settings: ControllerSettings) -> ControllerSettings:
        """The settings of the shard: its part of the queries that run and wait on each instance, at least one."""
        if self.count == 1:
            return settings
        parts = {name: max(1, self.share(getattr(settings, name))) for name in ("max_running", "max_queued")}
        return settings.model_copy(update=parts)

    def step(self, step: StepBudget | None) -> StepBudget | None:
        """The shard's part of an engine's step. All shards together fill no more than one."""
        if step is None or self.count == 1:
            return step
        tokens = max(1, self.share(step.tokens))
        return StepBudget(tokens, min(step.prompt_tokens, tokens))


WHOLE = ControllerShard()


def shard_of(first_document: str, count: int) -> int:
    """The shard, of ``count``, that owns the sub-trees below a prompt's first document, named by its content.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the shard whose hash with the document is greatest. If a shard is
    added, it takes its part from all others, and nothing else moves.
    """
    name = first_document.encode()
    return max(range(count), key=lambda shard: xxh3_64_intdigest(name, seed=shard))
