"""A request trace as a stream of prompts: its own arrivals, passages and lengths, with real text of these lengths."""

from collections.abc import Iterable, Iterator
from itertools import islice

from blake3 import blake3

from protocol.errors import ConfigError
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.workloads.prompt_streams import Arrival
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload


class TextPool:
    """Token ids of real text, from which texts of any length are drawn. Equal names are equal texts."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._token_ids = tuple(token_ids)

    def draw(self, name: str, tokens: int) -> tuple[int, ...]:
        """Return ``tokens`` token ids from a place that depends on ``name``. Raises ConfigError if there are fewer."""
        places = len(self._token_ids) - tokens
        if places < 0:
            raise ConfigError(f"a text of {tokens} tokens does not fit into the {len(self._token_ids)} to draw from")
        place = int.from_bytes(blake3(name.encode()).digest(8), "big") % (places + 1)
        return self._token_ids[place : place + tokens]


class TraceStream:
    """A ``PromptStream`` of a trace's requests, in their order.

    A prompt is the request's system prompt, its documents and its question, as RAGTree orders them. Requests with more
    than ``most_tokens`` tokens are left out.
    """

    def __init__(self, trace: Workload, texts: TextPool, most_tokens: int) -> None:
        self._trace = trace
        self._texts = texts
        self._most_tokens = most_tokens
        self._next = self._fitting()
        self.left, self.document_tokens = self._size()

    def take(self, count: int) -> list[Prompt]:
        """Return the next requests' prompts. Raises ConfigError if the trace ends before."""
        return [self._prompt(number, request) for number, request in self._requests(count)]

    def arrivals(self, rate: float, count: int) -> list[Arrival]:
        """Return the next prompts at the trace's own times, sped up or slowed down to a mean rate."""
        requests = self._requests(count)
        began_s, ended_s = requests[0][1].arrival_s, requests[-1][1].arrival_s
        if ended_s <= began_s:
            raise ConfigError(f"{count} requests of {self._trace.name} arrive at once: use more of them", "requests")
        # As with any other arrivals, the last one comes when it is due.
        scale = (count - 1) / rate / (ended_s - began_s)
        return [
            Arrival(1 / rate + (request.arrival_s - began_s) * scale, self._prompt(number, request))
            for number, request in requests
        ]

    def _requests(self, count: int) -> list[tuple[int, TraceRequest]]:
        taken = list(islice(self._next, count))
        self.left -= len(taken)
        if len(taken) < count:
            raise ConfigError(f"the trace {self._trace.name} has ended: use fewer requests or rates", "requests")
        return taken

    def _fitting(self) -> Iterator[tuple[int, TraceRequest]]:
        """The trace's requests that are short enough, with their numbers."""
        for number, request in enumerate(self._trace.requests()):
            if sum(tokens for _, tokens in _parts(request)) + request.question_tokens <= self._most_tokens:
                yield number, request

    def _size(self) -> tuple[int, int]:
        """How many requests there are, and how many tokens of KV their documents have."""
        requests = 0
        tokens: dict[tuple[str, ...], int] = {}
        for _, request in self._fitting():
            requests += 1
            path: tuple[str, ...] = ()
            for name, count in _parts(request):
                path += (name,)
                tokens[path] = count
        return requests, sum(tokens.values())

    def _prompt(self, number: int, request: TraceRequest) -> Prompt:
        kinds = [SegmentKind.SYSTEM] + [SegmentKind.DOCUMENT] * len(request.documents)
        parts = [self._segment(kind, name, tokens) for kind, (name, tokens) in zip(kinds, _parts(request), strict=True)]
        # A prompt ends with a question of at least one token.
        question = self._segment(SegmentKind.QUESTION, f"question {number}", max(1, request.question_tokens))
        return Prompt((*(part for part in parts if part.token_ids), question))

    def _segment(self, kind: SegmentKind, name: str, tokens: int) -> Segment:
        token_ids = self._texts.draw(name, tokens)
        return Segment(kind, blake3(f"{name} {tokens}".encode()).hexdigest(), token_ids)


def _parts(request: TraceRequest) -> list[tuple[str, int]]:
    """Names and tokens of a request's system prompt and documents."""
    documents: Iterable[TraceDocument] = request.documents
    return [
        (f"system {request.system_id}", request.system_tokens),
        *((f"document {document.id}", document.tokens) for document in documents),
    ]
