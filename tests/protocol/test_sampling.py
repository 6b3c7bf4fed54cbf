import pytest

from protocol.generation import Sampling


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(5),
        Sampling(5, seed=3, stop=("x",)),
        Sampling(5, top_p=0.5, top_k=3, min_p=0.1),
        Sampling(5, logprobs=True),
        Sampling(5, frequency_penalty=0.0),
    ],
)
def test_temperature_zero_alone_is_greedy(sampling):
    assert sampling.greedy


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.1},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
        {"json_schema": "{}"},
    ],
)
def test_what_changes_the_most_likely_token_is_not_greedy(changes):
    assert not Sampling(5, **changes).greedy
