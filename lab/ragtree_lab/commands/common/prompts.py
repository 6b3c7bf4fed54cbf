"""Prompts of question sets, with retrieved documents, and of traces. Retrieval results are kept between runs."""

from pathlib import Path

from examine.measuring import Progress
from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from protocol.errors import ConfigError
from ragtree_lab.workloads.articles import article_parts
from ragtree_lab.workloads.by_name import open_workload
from ragtree_lab.workloads.datasets import Dataset
from ragtree_lab.workloads.popularity import Popularity
from ragtree_lab.workloads.prompt_streams import (
    PromptStream,
    QuestionStream,
    RepeatingStream,
    own_questions,
    popular_documents,
)
from ragtree_lab.workloads.question_sets import QuestionRetrieval, QuestionSet
from ragtree_lab.workloads.retrieved_prompts import RetrievedPrompts
from ragtree_lab.workloads.stream_workload import StreamWorkload
from ragtree_lab.workloads.trace_stream import TextPool, TraceStream
from ragtree_lab.workloads.workload import Workload
from services.config import Config

_ASKS = {Popularity.DOCUMENTS: popular_documents, Popularity.OWN: own_questions}
"""How questions are chosen that are asked once each, by popularity."""

_TEXT_TOKENS = 1_000_000
"""How much text a trace's prompts are drawn from."""


def retrieved_prompts(
    config: Config,
    data: Path,
    workload: str,
    questions: int,
    part_tokens: int,
    top_k: int,
    seed: int,
    progress: Progress,
    *,
    max_tokens: int = 1,
    popular_first: bool = False,
    one_in: int = 1,
) -> RetrievedPrompts:
    """Return the prompts that a stack of this configuration makes for ``questions`` questions, drawn with ``seed``.

    Answers may have ``max_tokens``. With ``popular_first``, half of the questions are about the documents with the
    most. Only about one in ``one_in`` articles of the corpus is used. Do not call it inside a running event loop.
    Raises ConfigError if the set does not exist, and what the retriever raises.
    """
    factory = GeneratorFactory(config.generator, ModelStore(config.cache_dir))
    tokenizer, layout = factory.tokenizer(), factory.layout()
    question_set = QuestionSet(data, workload, one_in)
    parts = article_parts(question_set, lambda text: len(tokenizer.encode(text)), part_tokens)
    drawn = RetrievedPrompts(parts, layout, top_k, max_tokens)
    retrieval = QuestionRetrieval(config.retriever, config.cache_dir, progress)
    drawn.retrieve(question_set, retrieval, questions, seed, popular_first)
    return drawn


def prompt_stream(prompts: RetrievedPrompts, popularity: Popularity, count: int | None, seed: int) -> PromptStream:
    """Return a stream of ``count`` questions, or without end if whole prompts repeat. None: as many as there are.

    Raises ConfigError if there are too few questions.
    """
    if popularity is Popularity.PROMPTS:
        return RepeatingStream(prompts, seed)
    return QuestionStream(prompts, _ASKS[popularity](prompts, count, seed), seed)


def stream_workload(
    config: Config,
    data: Path,
    question_set: str,
    popularity: Popularity,
    *,
    questions: int,
    part_tokens: int,
    top_k: int,
    count: int | None,
    rate: float,
    seed: int,
    progress: Progress,
) -> Workload:
    """Return the questions of a replay, with Poisson arrivals at ``rate`` per second, for the simulator.

    ``count`` is as in ``prompt_stream``. Raises ConfigError if the set does not exist or has too few questions, and for
    prompts that repeat, which are no questions.
    """
    if popularity not in _ASKS:
        raise ConfigError(f"a simulation asks each question once: {' or '.join(_ASKS)}", param="popularity")
    prompts = retrieved_prompts(
        config,
        data,
        question_set,
        questions,
        part_tokens,
        top_k,
        seed,
        progress,
        popular_first=popularity is Popularity.DOCUMENTS,
    )
    return StreamWorkload(question_set, prompts, _ASKS[popularity](prompts, count, seed), rate, seed)


def trace_stream(
    config: Config, data: Path, trace: str, text_from: str, answer_tokens: int, progress: Progress
) -> TraceStream:
    """Return the requests of a trace that leave room for an answer, with text of the set ``text_from``.

    Raises ConfigError if trace or set do not exist.
    """
    tokenizer = GeneratorFactory(config.generator, ModelStore(config.cache_dir)).tokenizer()
    workload = open_workload(trace, data, 0)
    tokens: list[int] = []
    for document in Dataset(data, text_from).documents():
        tokens += tokenizer.encode(document.text)
        progress("reading text", min(len(tokens), _TEXT_TOKENS), _TEXT_TOKENS)
        if len(tokens) >= _TEXT_TOKENS:
            break
    return TraceStream(workload, TextPool(tokens), config.generator.max_model_len - answer_tokens)
