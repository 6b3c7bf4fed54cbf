"""With a configured skew, the first documents get exactly the given share of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from ragtree_lab.workloads.popularity import cumulated, zipf_weights


@given(st.integers(20, 5000), st.floats(0.01, 0.3), st.floats(0.4, 0.95))
def test_first_documents_get_their_share(count, top_share, requests_share):
    weights = zipf_weights(count, top_share, requests_share)
    top = max(1, round(count * top_share))
    assert sum(weights) == pytest.approx(1)
    assert sum(weights[:top]) == pytest.approx(requests_share, abs=1e-6)
    assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize(("count", "top", "share"), [(1, 0.5, 0.6), (10, 1.0, 0.6), (100, 0.5, 0.4), (100, 0.1, 1.0)])
def test_impossible_skew_is_refused(count, top, share):
    with pytest.raises(ConfigError):
        zipf_weights(count, top, share)


def test_running_sums():
    assert cumulated([0.5, 0.25, 0.25]) == [0.5, 0.75, 1.0]
