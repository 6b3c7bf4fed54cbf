"""What machines are asked: new questions about documents that come again as often as in a question set."""

import random
from collections.abc import Iterator

import msgspec

from examine.measuring.kv_paths import QUESTION_TOKENS, random_segment
from protocol.prompts import Prompt, SegmentKind
from ragtree_lab.workloads.popularity import zipf_weights

HALF = 0.5
"""The share of the queries that the popular documents get."""
HALF_OF_QUERIES = {"hotpotqa": 0.229, "squad": 0.031, "triviaqa": 0.314}
"""The share of a question set's documents that half of its queries concern, as Shared RAG-DCache counts them."""

_SYSTEM = random_segment("system", 32, SegmentKind.SYSTEM)


class Load(msgspec.Struct, frozen=True):
    """What is asked: about ``documents`` of ``document_tokens`` tokens, by ``clients`` at once.

    Each way is asked ``queries`` in each of ``turns``, after as many that fill its caches, and answers have
    ``answer_tokens`` tokens. ``hot_share`` of the documents get half of the queries.
    """

    documents: int
    document_tokens: int
    clients: int
    queries: int
    turns: int
    answer_tokens: int
    hot_share: float

    def prompts(self, top_k: int, seed: int) -> Iterator[Prompt]:
        """Prompts without end, with ``top_k`` documents each."""
        draws = random.Random(seed)  # noqa: S311 - a repeatable draw
        weights = zipf_weights(self.documents, self.hot_share, HALF)
        number = 0
        while True:
            number += 1
            chosen: dict[int, None] = {}
            while len(chosen) < min(top_k, self.documents):
                chosen.update(dict.fromkeys(draws.choices(range(self.documents), weights)))
            documents = [random_segment(f"document {which}", self.document_tokens) for which in chosen]
            question = random_segment(f"question {seed} {number}", QUESTION_TOKENS, SegmentKind.QUESTION)
            yield Prompt((_SYSTEM, *documents, question))
