"""Prompts of a question set, with retrieved documents. Retrieval results are kept between runs."""

from pathlib import Path

from benchmarks.measuring.progress import Progress
from benchmarks.workloads.articles import article_parts
from benchmarks.workloads.question_sets import QuestionRetrieval, QuestionSet
from benchmarks.workloads.retrieved_prompts import RetrievedPrompts
from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from services.config import Config


def retrieved_prompts(
    config: Config,
    data: Path,
    workload: str,
    questions: int,
    part_tokens: int,
    top_k: int,
    seed: int,
    progress: Progress,
) -> RetrievedPrompts:
    """Return the prompts that a stack of this configuration makes for ``questions`` questions, drawn with ``seed``.

    Do not call it inside a running event loop. Raises ConfigError if the set does not exist, and what the retriever
    raises.
    """
    factory = GeneratorFactory(config.generator, ModelStore(config.cache_dir))
    tokenizer, layout = factory.tokenizer(), factory.layout()
    question_set = QuestionSet(data, workload)
    parts = article_parts(question_set, lambda text: len(tokenizer.encode(text)), part_tokens)
    drawn = RetrievedPrompts(parts, layout, top_k, max_tokens=1)
    drawn.retrieve(question_set, QuestionRetrieval(config.retriever, config.cache_dir, progress), questions, seed)
    return drawn
