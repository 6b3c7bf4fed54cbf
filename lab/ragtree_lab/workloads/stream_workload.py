"""The questions of a replay as a workload for the simulator."""

import random
from collections.abc import Iterator, Sequence

from ragtree_lab.workloads.retrieved_prompts import AskedQuestion, RetrievedPrompts
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload, check_rate


class StreamWorkload(Workload):
    """Questions in the order given, with Poisson arrivals at ``rate`` per second and their real prompts' lengths.

    Raises ConfigError for an invalid rate.
    """

    def __init__(
        self, name: str, prompts: RetrievedPrompts, asked: Sequence[AskedQuestion], rate: float, seed: int
    ) -> None:
        check_rate(rate)
        self.name = name
        # Laying out a prompt takes long, and the simulator reads the requests once per policy.
        self._requests = [_request(prompts, one) for one in asked]
        self._rate = rate
        self._seed = seed

    @property
    def length(self) -> int:
        """The number of questions."""
        return len(self._requests)

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests."""
        draws = random.Random(f"arrivals {self._seed}")  # noqa: S311 - a repeatable draw
        arrival_s = 0.0
        for request in self._requests:
            arrival_s += draws.expovariate(self._rate)
            yield request._replace(arrival_s=arrival_s)


def _request(prompts: RetrievedPrompts, asked: AskedQuestion) -> TraceRequest:
    system, *documents, question = prompts.prompt(asked).segments
    return TraceRequest(
        0.0,
        tuple(TraceDocument(document.key, len(document.token_ids)) for document in documents),
        question_tokens=len(question.token_ids),
        system_tokens=len(system.token_ids),
        system_id=system.key,
    )
