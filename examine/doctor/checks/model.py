"""The model's folder, tokenizer and chat template, and prompts of real text, laid out as the stack does it.

Their documents are from Python's standard library.
"""

from collections.abc import Iterator
from itertools import islice

from blake3 import blake3

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.engines.factory import GeneratorFactory
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.errors import ConfigError
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import Chunk
from retriever.demo_corpus.stdlib_corpus import stdlib_documents

_DOCUMENTS = 2
_TOKENS = range(60, 200)
"""Tokens of a document: more than a block, and not a multiple of one."""


class Model:
    """Finds the model, which may download or convert it, and lays out the prompts of later checks."""

    name = "model"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if the model cannot be found, or has no usable tokenizer or chat template."""
        # Not in a thread, which an interrupt would have to wait for.
        settings = context.settings.model_copy(update={"max_model_len": context.max_model_len})
        factory, sizes = GeneratorFactory(settings, context.models), context.sizes
        context.prompts = real_prompts(factory.layout(), factory.tokenizer(), sizes.prompts, sizes.answer_tokens)
        context.model_folder = context.models.resolve(settings.model)
        lengths = [prompt.token_count for prompt in context.prompts]
        return Outcome.passed(f"{settings.model}; {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens")


def real_prompts(layout: SegmentLayout, tokenizer: ModelTokenizer, count: int, answer_tokens: int) -> list[Prompt]:
    """Return prompts with different documents. Raises ConfigError if the model's context has no room for them.

    Raises what the layout raises if the chat template refuses them.
    """
    documents = _documents(tokenizer)
    prompts = []
    for _ in range(count):
        chunks = list(islice(documents, _DOCUMENTS))
        if len(chunks) < _DOCUMENTS:
            raise ConfigError("Python's standard library is not installed with its sources, which are the documents")
        asked = ChatMessage("user", f"What does {chunks[-1].document_id} do?")
        prompt = layout.lay_out([asked], chunks, answer_tokens)
        if prompt.dropped_documents:
            raise ConfigError(
                "generator.max_model_len has no room for a prompt with two short documents: raise it",
                param="generator.max_model_len",
            )
        prompts.append(prompt)
    return prompts


def _documents(tokenizer: ModelTokenizer) -> Iterator[Chunk]:
    for document in stdlib_documents():
        if len(tokenizer.encode(document.text)) in _TOKENS:
            content_hash = blake3(document.text.encode()).hexdigest()
            yield Chunk(document.id, document.id, document.filename, 0, document.text, content_hash)
