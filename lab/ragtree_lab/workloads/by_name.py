"""Opens workloads by name or path."""

from collections.abc import Callable
from pathlib import Path

from protocol.errors import ConfigError
from ragtree_lab.workloads.question_sets import QuestionSet, open_question_set
from ragtree_lab.workloads.synthetic import PATTERNS, SyntheticSettings, SyntheticWorkload
from ragtree_lab.workloads.traces import open_trace
from ragtree_lab.workloads.workload import PAPER_MEAN_TOKENS, Workload
from retriever.settings import RetrieverSettings

TRACES = {"ragpulse": "trace_ragpulse", "mooncake": "trace_mooncake_synthetic"}
"""Named traces, and their folders below the data folder."""


def silent(step: str, done: int, total: int) -> None:
    """Report no progress."""


def open_workload(
    name_or_path: str,
    data: Path,
    seed: int,
    *,
    requests: int | None = None,
    rate: float | None = None,
    top_k: int | None = None,
    mean_tokens: float | None = PAPER_MEAN_TOKENS,
    documents: int = 10_000,
    alpha: float = 1.0,
    retriever: RetrieverSettings | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> Workload:
    """Open the workload of this name, or the trace at this path. Names win; write ``./zipf`` for a file.

    The names are:

    - ``ragpulse`` and ``mooncake``: traces below ``data``.
    - ``zipf``, ``temporal`` and ``uniform``: generated over ``documents`` documents with skew ``alpha``.
    - Question sets below ``data`` (see `ragtree_lab.workloads.question_sets`). A retriever with the settings
      ``retriever`` finds their documents, and keeps its files below ``cache_dir``. Opening one for the first time takes
      minutes; ``progress`` is called with (step, done, total). Do not open one inside a running event loop.

    ``requests``, ``rate`` (per second) and ``top_k`` cut and rescale a trace, and size all other workloads. Their
    defaults are 100,000 generated requests or each question once, 1 per second, and 5. A trace has its own document
    lengths. Others are drawn with mean ``mean_tokens``, or with None taken from the texts of the question set.

    Raises ConfigError if the workload does not exist or a value is out of range, and what the retriever raises.
    """
    if name_or_path in PATTERNS:
        settings = SyntheticSettings(
            requests=100_000 if requests is None else requests,
            documents=documents,
            top_k=5 if top_k is None else top_k,
            rate=1.0 if rate is None else rate,
            mean_tokens=PAPER_MEAN_TOKENS if mean_tokens is None else mean_tokens,
            alpha=alpha,
        )
        return SyntheticWorkload(name_or_path, settings, seed)
    if QuestionSet.exists(data, name_or_path):
        if cache_dir is None:
            raise ConfigError("a question set needs a cache folder for its retrieval results", param="cache_dir")
        return open_question_set(
            QuestionSet(data, name_or_path),
            retriever or RetrieverSettings(),
            cache_dir,
            seed,
            count=requests,
            top_k=5 if top_k is None else top_k,
            rate=1.0 if rate is None else rate,
            mean_tokens=mean_tokens,
            progress=progress,
        )
    path = data / TRACES[name_or_path] if name_or_path in TRACES else Path(name_or_path)
    if not path.exists():
        known = [*TRACES, *PATTERNS, *QuestionSet.names(data)]
        raise ConfigError(
            f"there is no workload {name_or_path!r}: {path} does not exist, and the names are {', '.join(known)}",
            param="workload",
        )
    workload = open_trace(path, name_or_path if name_or_path in TRACES else path.name)
    # The rate comes last: it applies to the requests that are left.
    workload = workload if top_k is None else workload.top_k(top_k)
    workload = workload if requests is None else workload.limit(requests)
    return workload if rate is None else workload.at_rate(rate)
