"""Follow-ups rewritten by a model, as the gateway has it do."""

import time
from collections.abc import Sequence
from uuid import uuid4

import msgspec

from examine.measuring.engines import generate
from examine.measuring.kv_paths import INSTANCE
from gateway.query.follow_ups import EARLIER_QUESTIONS, REWRITING, question_in, rewriting_prompt
from generator.engines.vllm_engine import VllmEngine
from protocol.parts import PromptLayout
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage

_NAMESPACE = "benchmark"


class Rewrite(msgspec.Struct, frozen=True):
    """What a model made of the last of the questions that were ``asked``, in ``ms``. None: nothing that can be used."""

    asked: tuple[str, ...]
    question: str | None
    ms: float


class ModelRewriter:
    """Rewrites with a running ``engine`` and the ``layout`` of its model, as the gateway does."""

    def __init__(self, engine: VllmEngine, layout: PromptLayout) -> None:
        self._engine = engine
        self._layout = layout

    async def rewrite(self, asked: Sequence[str]) -> Rewrite:
        """Rewrite the last of the questions. Raises what the engine raises."""
        sampling = REWRITING
        messages = rewriting_prompt([ChatMessage("user", text) for text in asked], EARLIER_QUESTIONS)
        prompt = self._layout.lay_out(messages, (), sampling.max_tokens, preamble=False)
        began = time.perf_counter()
        made = await generate(self._engine, PrefillPlan(uuid4().hex, INSTANCE, _NAMESPACE, prompt), sampling)
        ms = 1000 * (time.perf_counter() - began)
        question = question_in(made.text) if made.finish_reason == "stop" else None
        return Rewrite(tuple(asked), question or None, ms)
