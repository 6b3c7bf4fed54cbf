"""Documents for a toy engine, whose KV the tests put where they need it."""

from collections.abc import Sequence

from plan_messages import plan_message
from toy_engine import ONE_KIND, PAGE, ToyEngine, answer_to

from cachectl.nodes.keys import path_keys
from generator.connector.messages import RequestMessage
from protocol.kv import PageGroup, Pages, Paging
from protocol.plans import PlannedNode
from protocol.tiers import Tier

NAMESPACE = "tenant"


class Documents:
    """Documents of some lengths, with their keys and pages, for a model with layers of the kinds ``groups``."""

    def __init__(self, name: str, lengths: Sequence[int], groups: Sequence[PageGroup] = ONE_KIND) -> None:
        self.contents = tuple(f"{name}{index}" for index in range(len(lengths)))
        self.keys = [key.hex() for key in path_keys(NAMESPACE, self.contents)]
        self.lengths = lengths
        self.paging = Paging(PAGE, tuple(groups))
        seed = sum(name.encode())
        self.tokens = [(7 * at + seed) % 90 for at in range(sum(lengths))]

    def message(
        self, name: str, source: Tier | None, target: Tier | None, count: int | None = None, **plan: object
    ) -> RequestMessage:
        """The message of a request for the first ``count`` documents, by default all, and fields of its plan."""
        nodes, start, first = [], 0, 0
        for number, (key, tokens) in enumerate(zip(self.keys[:count], self.lengths, strict=False), start=1):
            pages = self.paging.page_count(start, tokens)
            kept = Pages(tuple(range(first, first + pages)), number) if Tier.HOST in (source, target) else None
            nodes.append(PlannedNode(key, tokens, source, target, kept))
            start, first = start + tokens, first + pages
        return plan_message(name, NAMESPACE, self.contents[:count], nodes, **plan)

    def ask(self, engine: ToyEngine, name: str, source: Tier | None, target: Tier | None, count: int) -> list[str]:
        """Ask about the first ``count`` documents. The answer must be right. Returns the copies that are lost."""
        prompt = [*self.tokens[: sum(self.lengths[:count])], *name.encode()]
        ask(engine, self.message(name, source, target, count), [token % 90 for token in prompt], 3, self.paging.groups)
        engine.run_until(lambda: engine.idle)
        reports, engine.connector.reports = engine.connector.reports, []
        return [copy.node for report in reports for copy in report.lost]


def ask(
    engine: ToyEngine,
    message: RequestMessage,
    prompt: Sequence[int],
    tokens: int = 1,
    groups: Sequence[PageGroup] = ONE_KIND,
) -> None:
    """Send a request, and wait for its end. Its answer must be right."""
    engine.send(message, prompt, tokens)
    engine.run_until(lambda: message.name in engine.finished, 5000)
    assert engine.answers[message.name] == answer_to(prompt, tokens, groups)
