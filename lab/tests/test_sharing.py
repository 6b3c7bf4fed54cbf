"""What the sharing benchmark asks, and the plain copy that it compares with, without engines."""

from collections import Counter
from itertools import islice

import pytest

from ragtree_lab.sharing.load import HALF_OF_QUERIES, Load
from ragtree_lab.sharing.tcp_copy import TcpCopy


def load(**changes) -> Load:
    given = {"documents": 50, "hot_share": 0.229} | changes
    return Load(document_tokens=20, clients=1, queries=1, turns=1, answer_tokens=1, **given)


@pytest.mark.parametrize("hot_share", HALF_OF_QUERIES.values())
def test_the_popular_documents_get_half_of_the_queries(hot_share):
    asked = Counter(
        prompt.documents[0].key for prompt in islice(load(documents=200, hot_share=hot_share).prompts(1, 1), 4000)
    )
    popular = sum(count for _, count in asked.most_common(round(hot_share * 200)))
    assert popular / 4000 == pytest.approx(0.5, abs=0.05)


def test_every_query_is_new_and_its_documents_are_different():
    prompts = list(islice(load(documents=4).prompts(3, 1), 100))
    assert len({prompt.segments[-1].key for prompt in prompts}) == 100
    assert all(len({document.key for document in prompt.documents}) == 3 for prompt in prompts)
    assert {len(document.token_ids) for document in prompts[0].documents} == {20}


def test_a_seed_repeats_what_is_asked():
    first, again, other = (list(islice(load().prompts(1, seed), 10)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_plain_copy_moves_all_bytes():
    with TcpCopy.opened(1 << 20) as tcp:
        tcp._target[:] = 0
        assert tcp.rate(1 << 19) > 0
        assert tcp._target.sum() == 1 << 19
        # The connection serves the next one, too.
        assert tcp.rate(1 << 20) > 0
        assert tcp._target.all()
