"""The record of one query, from which its events and its reply are made."""

import time
from collections.abc import Callable, Iterator
from typing import TypedDict

import msgspec

from gateway.limits.tokens import TokenMeter
from gateway.query.citations import supports
from gateway.query.query import Query
from gateway.query.timeline import Timeline, TokenTimes
from gateway.tasks import off_loop
from gateway.wire import events, reuse
from gateway.wire.errors import error_body
from gateway.wire.reply import (
    Citation,
    CitedPassage,
    PromptTokensDetails,
    Reply,
    Rewriting,
    ScoredToken,
    SearchResult,
    SpeculationTimings,
    Timings,
    Usage,
    scored,
    search_results,
)
from protocol.errors import DeadlineExceeded, InternalError, RagtreeError
from protocol.generation import FinishReason, GenerationStep, PrefillResult
from protocol.graph import Path, Subgraph
from protocol.parts import PromptLayout
from protocol.plans import Fallback, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet, Chunk, Reranking

NO_PREFILL = PrefillResult(prompt_tokens=0, cached_tokens=0, prefill_ms=0.0)


NOTHING_FOUND = CandidateSet(stage=1, of=1, docs=(), scores=(), final=True, elapsed_ms=0.0)


class _Stamp(TypedDict):
    sequence_number: int
    query_id: str


class _Searched(TypedDict):
    """What the final documents' event and the reply tell of the search."""

    results: tuple[SearchResult, ...]
    partial: bool
    missing_shards: tuple[str, ...]
    reranking: Reranking | None
    graph: Subgraph | None
    rewriting: Rewriting | None


class _Reused(TypedDict):
    """What the prefill's event and the reply tell of the KV that was used."""

    reuse: reuse.ReuseClass
    fallback: Fallback | None
    facts_attention: reuse.FactsAttention | None
    facts_fallback: Fallback | None


class Transcript:
    """Records what happens to one query, and makes its events, in order, and its reply from that.

    ``clock`` returns monotonic seconds. ``charge`` receives the tokens of its ``meter``.
    """

    def __init__(
        self, query: Query, clock: Callable[[], float] = time.monotonic, charge: Callable[[int], None] = lambda _: None
    ) -> None:
        self.query = query
        self.meter = TokenMeter(charge, prompt_paid=query.found is not None)
        self._clock = clock
        self._start = clock()
        self.timeline = Timeline(lambda: self.elapsed_s * 1000)
        self.token_times = TokenTimes()
        self.arrived_at = time.time()
        self._sequence = 0
        self._found = NOTHING_FOUND
        self._results: tuple[SearchResult, ...] = ()
        self._stages_ms: list[float] = []
        self._passages: tuple[Chunk, ...] = ()
        self._citations: tuple[Citation, ...] = ()
        self._cited: tuple[CitedPassage, ...] = ()
        self._told: tuple[Path, ...] = ()
        self._rewriting: Rewriting | None = None
        self._queue_ms = 0.0
        self._overtakes = 0
        self._prefill = NO_PREFILL
        self._reused = _Reused(reuse="none", fallback=None, facts_attention=None, facts_fallback=None)
        self._text: list[str] = []
        self._scored: list[ScoredToken] = []
        # How many have left.
        self._scored_sent = 0
        self._finish_reason: FinishReason | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the query arrived."""
        return self._clock() - self._start

    def alternative(self, number: int) -> Query:
        """The query of another answer from the same documents, once they are final."""
        return self.query.alternative(number, self._found)

    def created(self) -> events.QueryCreated:
        """The query's first event."""
        return events.QueryCreated(**self._stamp(), model=self.query.model, created_at=int(self.arrived_at))

    def rewritten(self, rewriting: Rewriting, began_ms: float) -> None:
        """Record the outcome of a follow-up that was to be rewritten. That began at ``began_ms`` and ends now."""
        self._rewriting = rewriting
        self.timeline.rewritten(rewriting, began_ms)

    def searched(self, found: CandidateSet) -> None:
        """Record a stage of the search."""
        self._stages_ms.append(found.elapsed_ms)
        if found.reranking is None:
            self.timeline.stage(found.stage, found.of)
        else:
            self.timeline.reranked(found.reranking)

    def stage(self, found: CandidateSet) -> events.RetrievalStage:
        """The event of one stage of the search."""
        ids = tuple(chunk.document_id for chunk in found.docs)
        return events.RetrievalStage(
            **self._stamp(), stage=found.stage, elapsed_ms=found.elapsed_ms, doc_ids=ids, final=found.final
        )

    def laid_out(self, found: CandidateSet, prompt: Prompt) -> None:
        """Record the final documents, and which of them are in the prompt."""
        self._found = found
        kept = len(found.docs) - prompt.dropped_documents
        self._results = search_results(found, self.query.search.collection, self.query.include_text)
        self._passages = found.docs[:kept]
        self._citations = tuple(
            Citation(chunk.document_id, chunk.filename, rank, chunk.chunk_id)
            for rank, chunk in enumerate(self._passages)
        )
        told = self.query.prompt_paths(found)
        self._told = tuple(told[place] for place in prompt.paths)

    def retrieved(self) -> events.RetrievalCompleted:
        """The event of the final documents."""
        return events.RetrievalCompleted(**self._stamp(), **self._searched(), elapsed_ms=self._found.elapsed_ms)

    def admitted(self, plan: PrefillPlan) -> None:
        """Record how long the query was queued, and how often it was overtaken."""
        self._queue_ms = plan.queued_ms
        self._overtakes = plan.overtaken

    def step(self, plan: PrefillPlan, step: GenerationStep) -> Iterator[events.Event]:
        """Record one step of the engine, and make its events."""
        if step.prefill is not None:
            self._prefill = step.prefill
            self._reused = _Reused(
                reuse=reuse.reuse_class(step.prefill),
                fallback=reuse.fallback_of(plan, step.prefill),
                facts_attention=reuse.facts_attention(plan, step.prefill),
                facts_fallback=reuse.facts_fallback(plan, step.prefill),
            )
            yield self._resolved(plan, step.prefill)
            for cited in self._citations:
                yield events.AnnotationAdded(**self._stamp(), annotation=cited)
        if step.tokens:
            self.meter.generated(step.tokens)
            first = self.token_times.first_ms is None
            self.token_times.record(
                self.timeline.moment("first_token") if first else self.timeline.now_ms(), step.tokens
            )
        self._finish_reason = step.finish_reason
        self._scored += (scored(token, self.query.sampling.alternatives) for token in step.logprobs)
        if step.text:
            self._text.append(step.text)
            logprobs = self._logprobs(self._scored_sent)
            self._scored_sent = len(self._scored)
            yield events.OutputTextDelta(**self._stamp(), delta=step.text, logprobs=logprobs)

    def context(self, layout: PromptLayout) -> Iterator[events.Event]:
        """Record the context that is laid out as the answer, and make its events."""
        self._text.append(layout.context_text(self._passages, self._told))
        self._finish_reason = "stop"
        for cited in self._citations:
            yield events.AnnotationAdded(**self._stamp(), annotation=cited)
        if self._text[0]:
            yield events.OutputTextDelta(**self._stamp(), delta=self._text[0], logprobs=self._logprobs())

    async def cite(self) -> None:
        """Find the passages that the answer rests on, once it is complete. Its reply tells them."""
        question = self.query.search.query
        compared = sum(map(len, self._text)) + len(question) + sum(len(passage.text) for passage in self._passages)

        def joined() -> tuple[str, tuple[CitedPassage, ...]]:
            answer = "".join(self._text)
            return answer, self._cited_in(answer, question)

        answer, self._cited = await off_loop(compared, joined)
        self._text = [answer] if answer else []

    def completed(self, speculation: SpeculationTimings | None = None) -> events.QueryCompleted:
        """Make the terminal event of an answered query, with the result of its speculation."""
        if self.token_times.first_ms is not None:
            self.timeline.phase("decode", self.token_times.first_ms, f"{self.token_times.tokens} tokens")
        self.timeline.moment("end")
        reply = self._reply(speculation)
        return events.QueryCompleted(**self._stamp(), response=reply, usage=reply.usage, timings=reply.timings)

    def failed(self, error: RagtreeError) -> events.QueryIncomplete | events.QueryFailed:
        """Make the terminal event of a query that failed."""
        if isinstance(error, DeadlineExceeded) and self._text:
            return events.QueryIncomplete(**self._stamp(), reason="timeout")
        return events.QueryFailed(**self._stamp(), error=error_body(error))

    def _resolved(self, plan: PrefillPlan, prefill: PrefillResult) -> events.CacheResolved:
        return events.CacheResolved(
            **self._stamp(),
            **self._reused,
            prompt_tokens=prefill.prompt_tokens,
            cached_tokens=prefill.cached_tokens,
            composed_tokens=prefill.composed_tokens,
            recomputed_tokens=prefill.recomputed_tokens,
            hit_docs=sum(tier is not None for tier in reuse.found_in(plan, prefill)),
            tiers={tier.value: tokens for tier, tokens in prefill.loaded.items() if tokens},
        )

    def _reply(self, speculation: SpeculationTimings | None) -> Reply:
        if self._finish_reason is None:
            raise InternalError("The query ended without a finish reason.")
        prompt_tokens = self._prefill.prompt_tokens
        dropped = tuple(chunk.chunk_id for chunk in self._found.docs[len(self._passages) :])
        return Reply(
            **self._searched(),
            **self._reused,
            query_id=self.query.query_id,
            created_at=int(self.arrived_at),
            model=self.query.model,
            finish_reason=self._finish_reason,
            output_text="".join(self._text),
            citations=self._citations,
            cited=self._cited,
            dropped_documents=len(dropped),
            dropped_chunk_ids=dropped,
            usage=Usage(
                prompt_tokens,
                self.token_times.tokens,
                prompt_tokens + self.token_times.tokens,
                PromptTokensDetails(
                    self._prefill.cached_tokens, self._prefill.composed_tokens, self._prefill.recomputed_tokens
                ),
            ),
            timings=self._timings(speculation),
            timeline=self.timeline.entries if self.query.include_timeline else msgspec.UNSET,
            logprobs=self._logprobs(),
        )

    def _searched(self) -> _Searched:
        graph = self._found.graph
        return _Searched(
            results=self._results,
            partial=bool(self._found.missing_shards),
            missing_shards=self._found.missing_shards,
            reranking=self._found.reranking,
            # Of the paths, those that the prompt tells: as citations are the results that it contains.
            graph=None if graph is None else msgspec.structs.replace(graph, paths=self._told),
            rewriting=self._rewriting,
        )

    def _cited_in(self, answer: str, question: str) -> tuple[CitedPassage, ...]:
        held = supports(answer, question, [passage.text for passage in self._passages])
        return tuple(
            CitedPassage(
                index, self._passages[index].document_id, self._passages[index].chunk_id, round(overlap, 3), spans
            )
            for index, overlap, spans in held
        )

    def _logprobs(self, since: int = 0) -> tuple[ScoredToken, ...] | msgspec.UnsetType:
        return tuple(self._scored[since:]) if self.query.sampling.logprobs else msgspec.UNSET

    def _timings(self, speculation: SpeculationTimings | None) -> Timings:
        total_ms = self.elapsed_s * 1000
        overlapped_ms = speculation.overlapped_ms if speculation is not None else 0.0
        return Timings(
            queue_ms=self._queue_ms,
            retrieval_ms=self._found.elapsed_ms,
            stages_ms=tuple(self._stages_ms),
            non_overlapped_ms=max(0.0, self._found.elapsed_ms - overlapped_ms),
            speculation=speculation,
            kv_load_ms=self._prefill.kv_load_ms,
            prefill_ms=self._prefill.prefill_ms,
            ttft_ms=total_ms if self.token_times.first_ms is None else self.token_times.first_ms,
            total_ms=total_ms,
            overtakes=self._overtakes,
        )

    def _stamp(self) -> _Stamp:
        number = self._sequence
        self._sequence += 1
        return {"sequence_number": number, "query_id": self.query.query_id}
