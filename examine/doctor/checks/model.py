"""The model's folder, tokenizer and chat template."""

from collections.abc import Sequence
from pathlib import Path

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from examine.doctor.prompts import real_prompts
from generator.engines.factory import GeneratorFactory
from protocol.prompts import Prompt


class Model:
    """Finds the model, which may download or convert it, and lays out the prompts of later checks."""

    name = "model"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if the model cannot be found, or has no usable tokenizer or chat template."""
        # Not in a thread, which an interrupt would have to wait for.
        context.model_folder, context.prompts = _prepared(context)
        lengths = [prompt.token_count for prompt in context.prompts]
        return Outcome.passed(
            f"{context.settings.model}; {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens"
        )


def _prepared(context: Context) -> tuple[Path, Sequence[Prompt]]:
    sizes = context.sizes
    settings = context.settings.model_copy(update={"max_model_len": context.max_model_len})
    factory = GeneratorFactory(settings, context.models)
    prompts = real_prompts(factory.layout(), factory.tokenizer(), sizes.prompts, sizes.answer_tokens)
    return context.models.resolve(settings.model), prompts
