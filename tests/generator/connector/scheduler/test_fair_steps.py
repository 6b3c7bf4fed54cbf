"""What prefills take of steps that tenants share."""

from types import SimpleNamespace

import pytest

from generator.connector.scheduler.fair_steps import FairSteps


class Steps:
    """Steps of a scheduler whose prefills take a time for each token."""

    def __init__(self, token_s: float, most: int = 768) -> None:
        self.config = SimpleNamespace(long_prefill_token_threshold=most)
        self._now = 0.0
        self._token_s = token_s
        self._fair = FairSteps(self.config, lambda: self._now)

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def two_at_once(self, tokens: int) -> None:
        """Begin a step while another one is computed."""
        for _ in range(2):
            self._fair.begin((), tokens)
        for _ in range(2):
            self.wait(tokens * self._token_s)
            self._fair.end()

    def most(self, *requests: tuple[str, int], tokens: int = 1024) -> int:
        """What a prompt may take of a step behind two of so many tokens. A request has a tenant and output tokens."""
        states = [
            SimpleNamespace(request=SimpleNamespace(num_output_tokens=output), plan=SimpleNamespace(namespace=name))
            for name, output in requests
        ]
        for _ in range(2):
            self._fair.begin(states, tokens)
            self.wait(tokens * self._token_s)
            self._fair.end()
        return self.config.long_prefill_token_threshold


def test_a_tenant_may_use_whole_steps_among_its_own_requests():
    steps = Steps(0.001)
    assert steps.most(("one", 0)) == 768
    assert steps.most(("one", 0), ("one", 5), ("one", 0)) == 768
    assert steps.most(("one", 5), ("two", 5)) == 768


def test_answers_of_others_wait_for_a_tenth_of_a_second():
    steps = Steps(0.001)
    assert steps.most(("one", 0), ("two", 5)) == pytest.approx(100, abs=1)
    assert steps.most(("one", 0), ("one", 0), ("two", 5)) == pytest.approx(50, abs=1), "they share a step"
    assert steps.most(("one", 0), ("one", 5)) == 768, "as before, once the other answer has ended"


def test_fast_steps_are_not_bounded():
    assert Steps(0.00001).most(("one", 0), ("two", 5)) == 768


def test_slow_steps_still_prefill_something():
    assert Steps(0.1).most(("one", 0), ("two", 5)) == 32


def test_steps_of_few_tokens_are_not_measured():
    assert Steps(1.0).most(("one", 0), ("two", 5), tokens=8) == 768


def test_pauses_between_steps_are_not_measured():
    steps = Steps(0.001)
    steps.most(("one", 0))
    steps.wait(3600)
    assert steps.most(("one", 0), ("two", 5)) == pytest.approx(100, abs=1)


def test_steps_that_begin_while_others_are_computed_take_their_own_time():
    steps = Steps(0.001)
    steps.two_at_once(1024)
    assert steps.most(("one", 0), ("two", 5)) == pytest.approx(100, abs=1)


def test_a_scheduler_without_a_bound_gets_one_while_tenants_share_it():
    steps = Steps(0.001, most=0)
    assert steps.most(("one", 0), ("two", 5)) == pytest.approx(100, abs=1)
    assert steps.most(("one", 0)) == 0
