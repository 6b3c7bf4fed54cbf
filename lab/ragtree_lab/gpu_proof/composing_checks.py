"""Composed prompts on a real vLLM: documents' KV moves to other positions, and some tokens are computed again."""

from statistics import median

from examine.composing.benchmark import ComposedPlans
from examine.composing.rows import Way
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import random_segment
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.kv import Orders, Paging
from protocol.plans import PrefillPlan
from protocol.prompts import Segment, SegmentKind
from ragtree_lab.gpu_proof.answers import TOLERANCE, Answer, answer_of, begins_alike, check_documents_matter, compare
from ragtree_lab.gpu_proof.checked_engine import CheckedEngine
from ragtree_lab.gpu_proof.process import Task

_SYSTEM_TOKENS, _NEIGHBOUR_TOKENS, _QUESTION_TOKENS = 27, 45, 21
"""No multiples of a block, so that a document moves from one place within its blocks to another."""

_METHODS = ("query", "cacheblend", "epic", "random", "none")
_SHARE = 0.2
_SPEEDS = (Way("query", 0.1), Way("query", 0.2), Way("none", 0.0))


class ComposingChecks:
    """Checks of one engine, whose prompts have ``documents`` of ``document_tokens`` tokens."""

    def __init__(self, task: Task) -> None:
        given = task.group.settings
        self._documents: int = given["documents"]
        self._document_tokens: int = given["document_tokens"]
        self._rounds: int = given["rounds"]
        self._small: bool = given["small"]
        self._tolerance = TOLERANCE[given["dtype"]]
        prompt_tokens = _SYSTEM_TOKENS + self._documents * self._document_tokens + _QUESTION_TOKENS
        longest = prompt_tokens + 32 - prompt_tokens % 32
        # A step takes whole prompts, as vLLM's own default does.
        self._engine = CheckedEngine(task, longest, 3 * longest, longest, given["host_gib"])

    async def usable(self) -> bool:
        """Whether the engine is alive and idle again."""
        return await self._engine.usable()

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    async def start(self) -> str:
        """Start the engine, which checks that it can rotate the model's keys."""
        info = await (await self._engine.get()).info()
        if info.composing is None:
            raise ValueError(f"it cannot compose: {info.not_composing}")
        return f"{self._engine.opened()}, moving a token takes {info.composing.move_s * 1e6:.1f} us"

    async def moved(self) -> str:
        """In a model of one layer, KV depends on a token and its position alone. So moved KV changes no answer."""
        pairs, others = [], []
        for number in range(self._rounds):
            plans, question = await self._prepared(f"moved {number}")
            other, _ = self._plans(f"not moved {number}")
            answer = await self._composed(plans, question, Way("none", 0.0))
            pairs.append((answer, await self._ask(plans.computed(question))))
            others.append((answer, await self._ask(other.computed(question))))
        check_documents_matter(others)
        return compare(pairs, self._tolerance)

    async def all_recomputed(self) -> str:
        """If all tokens are computed again, the answer is that of a full prefill."""
        pairs = []
        for number in range(self._rounds):
            plans, question = await self._prepared(f"all recomputed {number}")
            answer = await self._composed(plans, question, Way("query", 1.0))
            pairs.append((answer, await self._ask(plans.computed(question))))
        return compare(pairs, self._tolerance)

    async def methods(self) -> str:
        """Each method computes the share that it was given. How close the answers are says little of random weights."""
        found = dict.fromkeys(_METHODS, 0)
        for number in range(self._rounds):
            plans, question = await self._prepared(f"methods {number}")
            full = await self._ask(plans.computed(question))
            for method in _METHODS:
                answer = await self._composed(plans, question, Way(method, _SHARE))
                found[method] += begins_alike(answer, full)
        return f"equal answers of {self._rounds}: " + ", ".join(f"{method} {equal}" for method, equal in found.items())

    async def speed(self) -> str:
        """Composing is faster than computing, everything included."""
        took: dict[Way | None, list[float]] = {way: [] for way in (None, *_SPEEDS)}
        loads = []
        for number in range(self._rounds + 1):
            plans, question = await self._prepared(f"speed {number}")
            for way, times in took.items():
                plan = plans.computed(question) if way is None else plans.composed(question, way)
                came = await self._generated(plan)
                # The first round warms up.
                if number:
                    times.append(came.ttft_ms)
                    loads += [came.prefill.kv_load_ms] if way is not None else []
        full, *others = (median(times) for times in took.values())
        figure = f"full prefill {full:.0f} ms, " + ", ".join(
            f"{way.method} at {way.share:.0%} {ms:.0f} ms ({full / ms:.1f} x)"
            for way, ms in zip(_SPEEDS, others, strict=True)
        )
        figure = f"{figure}; loads {median(loads):.0f} ms of it"
        if max(others) >= full and not self._small:
            raise ValueError(f"computing is faster: {figure}")
        return figure

    async def _prepared(self, name: str) -> tuple[ComposedPlans, Segment]:
        """Plans for new documents, whose KV is put into host memory, and a question about them."""
        await (await self._engine.get()).carry_out(Orders(everything=True))
        plans, question = self._plans(name)
        for plan in plans.prepare(question):
            await self._generated(plan, 1)
        return plans, question

    def _plans(self, name: str) -> tuple[ComposedPlans, Segment]:
        documents = [random_segment(f"{name} {one}", self._document_tokens) for one in range(self._documents)]
        system = random_segment("system", _SYSTEM_TOKENS, SegmentKind.SYSTEM)
        neighbour = random_segment(f"{name} neighbour", _NEIGHBOUR_TOKENS)
        question = random_segment(f"{name}?", _QUESTION_TOKENS, SegmentKind.QUESTION)
        return ComposedPlans((system, *documents), neighbour, Paging(self._engine.page_tokens)), question

    async def _composed(self, plans: ComposedPlans, question: Segment, way: Way) -> Answer:
        """The answer to a prompt that is composed. Raises ValueError if it was not, or not as it should be."""
        answer = await self._ask(plans.composed(question, way))
        donated = (self._documents - 1) * self._document_tokens
        reused, recomputed = answer.prefill.composed_tokens, answer.prefill.recomputed_tokens
        if reused + recomputed != donated:
            raise ValueError(f"{reused} tokens were reused and {recomputed} computed again, of {donated}")
        most = 0 if way.method == "none" else int(way.share * donated)
        if not 0.8 * most <= recomputed <= most:
            raise ValueError(f"{way.method} computed {recomputed} tokens again instead of up to {most}")
        return answer

    async def _ask(self, plan: PrefillPlan) -> Answer:
        return answer_of(await self._generated(plan))

    async def _generated(self, plan: PrefillPlan, max_tokens: int = 2) -> Generation:
        engine: VllmEngine = await self._engine.get()
        return await generate(engine, plan, Sampling(max_tokens, logprobs=True))
