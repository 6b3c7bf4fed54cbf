"""The worker process that reads chunks by rules.

It reads one group of chunks after another from standard input.
"""

import sys

import msgspec
from threadpoolctl import threadpool_limits

from retriever.graph.extractors.base import GraphSource
from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.rules import RulesExtractor
from retriever.thread_priorities import lower_priority
from subprocesses.worker_process import read_frame, write_frame


def main() -> None:
    """Read chunks until standard input closes."""
    lower_priority()
    # The embedder computes at the same time, on the other cores.
    threadpool_limits(limits=1)
    extractor = RulesExtractor(Phrases())
    while True:
        try:
            sources = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=list[GraphSource])
        except EOFError:
            return
        write_frame(sys.stdout.buffer, extractor.extract(sources))


if __name__ == "__main__":
    main()
